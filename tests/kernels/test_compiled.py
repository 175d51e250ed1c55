"""Every kernel compiles ahead of time for the GPUs that we know, and fits their shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""What one block may use, of the tables of CUDA's programming guide."""


def compiled(capability: int, cache: Path, *options: str) -> list[dict[str, Any]]:
    """Compile in a process of its own: in this one, Triton interprets."""
    here = Path(__file__).parent
    search = os.pathsep.join([str(here.parent), str(here.parents[1])])
    command = [sys.executable, str(here / "ahead_of_time.py"), str(capability), *options]
    environment = {**os.environ, "PYTHONPATH": search, "TRITON_CACHE_DIR": str(cache)}
    kernels: list[dict[str, Any]] = json.loads(subprocess.check_output(command, env=environment))
    return kernels


def test_attention_and_a_product_of_four_bits_compile_for_sm_90(tmp_path: Path) -> None:
    kernels = compiled(90, tmp_path)
    assert {kernel["name"] for kernel in kernels} == {"_attend", "_reduce", "_multiply_int4", "_normalise"}
    assert all(kernel["cubin_bytes"] > 0 and kernel["shared_bytes"] <= SHARED_BYTES[90] for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_configuration_compiles_and_fits(capability: int, tmp_path: Path) -> None:
    kernels = compiled(capability, tmp_path, "--all")
    assert {kernel["name"] for kernel in kernels} == {
        "_attend", "_reduce", "_write", "_normalise", "_rotate", "_multiply", "_multiply_int4", "_multiply_int8",
        "_add_splits", "_search_parts", "_choose", "_draw",
    }  # fmt: skip
    assert [kernel for kernel in kernels if kernel["shared_bytes"] > SHARED_BYTES[capability]] == []
