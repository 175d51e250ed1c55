"""A model spread over real processes, as the worker sets them up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from model_harness import ignore_progress

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.generation import LoadModel
from dataplane.contracts.parallel import Parallel
from dataplane.contracts.ranks import MakePool
from dataplane.model.loader import load
from dataplane.model.model_runner import ModelRunner
from dataplane.model.parallel.ranks import LeadingExecutor, Ranks, SpreadPool
from dataplane.model.program import RESIDUAL

NUM_BLOCKS, TIMEOUT_S = 64, 120.0


class Spread(NamedTuple):
    runner: ModelRunner
    pool: SpreadPool
    ranks: Ranks
    lost: threading.Event


@contextmanager
def spread(folder: Path, parallel: Parallel, patience_s: float = TIMEOUT_S) -> Iterator[Spread]:
    """Ranks of the model in ``folder``; ``lost`` is set when one is."""
    lost, settings = threading.Event(), EngineSettings()
    request = LoadModel(str(folder), str(folder.parent / "runtime"), "", settings, {}, b"salt")
    with Ranks(parallel, settings.device, lambda reason: lost.set(), patience_s) as ranks:
        ranks.begin_load(request)
        model = load(folder, folder.parent / "runtime", settings, ignore_progress, place=ranks.place)
        ranks.end_load(ignore_progress)
        what = MakePool(NUM_BLOCKS, 8, 512, 64, threads=1)
        executor, pool = model.make_executor(what, ranks.group.all_reduce)
        ranks.make_pools(what)
        leading = LeadingExecutor(executor, ranks, model.program.widths[RESIDUAL])
        runner = ModelRunner(model.config, leading, pool, model.context_tokens)
        yield Spread(runner, SpreadPool(pool, ranks), ranks, lost)
