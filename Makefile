# Pagoda: `make up` runs the product, `make test` checks everything. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/installed

.PHONY: help setup test-setup up down test soak mutants lint types model shots bench report memory gpu peers probes

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml constraints.txt $(wildcard dataplane/kernels/cpu/*pp)
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[control,model,local,convert,dev]'
	@touch $@

setup: $(STAMP)  ## make .venv and install what running needs
	@$(RUN) -m stack.system

test-setup: $(STAMP)
	@$(RUN) -m stack.system --tests

up: setup  ## start the whole product, print its address, a key and a curl
	@$(RUN) -m stack up

down:  ## end what make up started
	@if test -e $(STAMP); then $(RUN) -m stack down; else echo "Nothing is installed here, so nothing is running."; fi

model: $(STAMP)  ## fetch and convert the bundled model once
	@$(RUN) -m stack.bundled_model

lint: $(STAMP)  ## ruff and the import contracts
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(VENV)/bin/lint-imports

types: $(STAMP)  ## mypy strict
	@$(RUN) -m mypy

test: test-setup model  ## everything CI checks
	@$(RUN) -m stack.checks

soak: test-setup model  ## the long versions of races, fuzzing, faults, uploads and memory plans (many minutes)
	@$(RUN) -m pytest -q --hypothesis-profile=soak tests/contracts tests/spool tests/engine
	@$(RUN) -m pytest -q -m slow tests/races
	@$(RUN) -m pytest -q -m slow tests/api tests/contracts tests/gateway tests/fleet
	@$(RUN) -m pytest -q -m slow tests/engine
	@$(RUN) -m pytest -q -m slow tests/kernels tests/model tests/worker
	@$(RUN) -m pytest -q -m slow tests/e2e tests/isolation
	@$(RUN) -m pytest -q -m slow tests/faults
	@$(RUN) -m pytest -q -m slow tests/journeys

mutants: $(STAMP)  ## put known faults of the scheduler back one by one and show that a test fails for each
	@$(RUN) tests/mutants/run.py

shots: test-setup model  ## remake the screenshots of the README
	@$(RUN) -m pytest tests/e2e -q -m slow -k photographed --shots docs/images

bench: setup model  ## time the worker beside its peers (after make peers); goes on where it was ended; TINY=1 tries it
	@$(RUN) tests/bench/batch_sweep.py $(if $(TINY),--tiny)
	@test -e var/bench/quality.json || PYTHONPATH=tests $(RUN) tests/bench/quality.py
	@$(RUN) tests/bench/run.py $(if $(TINY),--tiny) $(ARGS); status=$$?; \
		$(RUN) tests/bench/report.py $(if $(TINY),--tiny) && exit $$status

report: $(STAMP)  ## write what make bench has measured so far into docs
	@$(RUN) tests/bench/report.py --into docs

memory: setup model  ## hold the memory planner against replicas that run (some minutes)
	@PYTHONPATH=tests $(RUN) tests/bench/memory.py

gpu: $(STAMP)  ## hold the GPU's kernels against their references, and time them (needs a GPU, and torch for it)
	@PYTHONPATH=tests:. $(RUN) tests/bench/gpu.py
	@$(RUN) -m pytest -q tests/gpu

probes: $(STAMP)  ## look for leaks between tenants on the running product, 2,000 times each way (minutes)
	@$(RUN) -m stack probes $(ARGS)

peers: $(STAMP)  ## install the engines that make bench compares with (builds llama.cpp: half an hour)
	@$(RUN) tests/bench/install_peers.py
