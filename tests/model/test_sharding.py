"""What the ranks have makes up the model: every family, cut across and along, computes what one rank does."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from model_harness import ignore_progress, make_row
from tiny_models import CONFIGS, make_tiny, make_tiny_llama
from torch import Tensor

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.parallel import Parallel, Place
from dataplane.contracts.ranks import MakePool
from dataplane.kernels import panels
from dataplane.model import loader
from dataplane.model import step as steps
from dataplane.model.architectures import architecture_of
from dataplane.model.executor import Executor
from dataplane.model.kv_pool import KvPool
from dataplane.model.loader import LoadedModel, LoadError
from dataplane.model.packing import LAYOUT_VERSION
from dataplane.model.parallel.sharding import shard_of
from dataplane.model.quantize import quantize
from dataplane.model.reference import ReferenceExecutor

ROOM = MakePool(num_blocks=32, block_size=8, max_tokens=64, max_num_seqs=64, threads=1)
PROMPT = list(range(5, 45))


def load(folder: Path, place: Place = Place(), dtype: str = "fp32") -> LoadedModel:  # noqa: B008 - it is frozen
    settings = EngineSettings(dtype=dtype, kv_dtype="fp32")
    return loader.load(folder, folder.parent / "runtime", settings, ignore_progress, place=place)


class Adder:
    """Adds up what the threads of ranks have, in the order of their ranks."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._parts: dict[int, Tensor] = {}

    def of(self, rank: int) -> Callable[[Tensor], None]:
        def all_reduce(part: Tensor) -> None:
            self._parts[rank] = part.clone()
            self._barrier.wait(60)
            part.copy_(sum(self._parts[one] for one in sorted(self._parts)))
            self._barrier.wait(60)

        return all_reduce


def logits(executors: list[tuple[Executor, KvPool]], parallel: Parallel) -> Tensor:
    """The logits of a prompt's tokens, by ranks that are threads here; stage after stage."""
    row = make_row("a", PROMPT, 0, [3, 9, 1, 30, 4])
    step = steps.build([row], steps.Bounds(ROOM.block_size, ROOM.num_blocks, 320, 128))
    for first in range(0, parallel.ranks, parallel.tensor):
        stage = executors[first : first + parallel.tensor]
        if first:
            for executor, _ in stage:
                executor.put_residual(executors[first - parallel.tensor][0].residual(len(PROMPT)))
        threads = [threading.Thread(target=executor.run, args=(step, pool)) for executor, pool in stage]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    leader, _ = executors[0]
    leader.put_residual(executors[-1][0].residual(len(PROMPT)))
    return leader.logits(np.arange(len(PROMPT), dtype=np.int32)).values.clone()


def spread(folder: Path, parallel: Parallel, dtype: str = "fp32", *, reference: bool = False) -> Tensor:
    executors: list[tuple[Executor, KvPool]] = []
    adders = [Adder(parallel.tensor) for _ in range(parallel.pipeline)]
    for rank in range(parallel.ranks):
        place = Place.of(rank, parallel)
        model = load(folder, place, dtype)
        all_reduce = adders[place.stage].of(place.slice)
        executor, pool = model.make_executor(ROOM, all_reduce)
        executors.append((ReferenceExecutor(model.program, model.weights, all_reduce) if reference else executor, pool))
    return logits(executors, parallel)


@pytest.mark.parametrize("family", ["llama", *CONFIGS])
def test_every_family_computes_on_ranks_what_it_does_on_one(family: str, tmp_path: Path) -> None:
    if family == "llama":
        folder = make_tiny_llama(tmp_path / "model", num_layers=3, attention_bias=True, mlp_bias=True)
    else:
        folder = make_tiny(tmp_path / "model", family)
    expected = spread(folder, Parallel())
    for parallel in (Parallel(2), Parallel(1, 2), Parallel(2, 2)):
        torch.testing.assert_close(spread(folder, parallel), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(spread(folder, Parallel(2), reference=True), expected, atol=1e-4, rtol=1e-4)


def test_the_only_rank_has_the_whole_program_and_the_whole_weights(tmp_path: Path) -> None:
    whole = load(make_tiny_llama(tmp_path / "model"))
    program = architecture_of(whole.config).program(whole.config)
    assert shard_of(program, Place(), "fp32").program == program == whole.program


def test_each_rank_maps_and_keeps_only_its_part(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", num_layers=4)
    whole = load(folder)
    parts = [load(folder, Place.of(rank, Parallel(2, 2))) for rank in range(4)]
    held = [sum(tensor.nbytes for tensor, *_ in part.weights.matrices.values()) for part in parts]
    vocabulary = sum(whole.weights.matrices[name][0].nbytes for name in ("embedding", "head"))
    everything = sum(tensor.nbytes for tensor, *_ in whole.weights.matrices.values())
    assert held[2] == held[3] == (everything - vocabulary) // 4
    assert "head" in parts[0].weights.matrices
    assert all("head" not in part.weights.matrices for part in parts[1:])
    written = sorted(path.name.rpartition(f"fp32-{LAYOUT_VERSION}")[2] for path in (tmp_path / "runtime").iterdir())
    assert written == ["", "-t0of2-p0of2", "-t0of2-p1of2", "-t1of2-p0of2", "-t1of2-p1of2"]
    pools = [part.make_executor(ROOM)[1].data.numel() for part in (whole, *parts)]
    assert pools[1:] == [pools[0] // 4] * 4


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_quantised_folder_is_cut_between_its_groups(scheme: str, tmp_path: Path) -> None:
    """The inner width has a group of its own at the end, and the parts hold the very values of the whole."""
    source = make_tiny_llama(tmp_path / "source", num_layers=1, head_dim=32, intermediate_size=208)
    quantize(source, tmp_path / scheme, scheme)
    whole, first, second = (
        load(tmp_path / scheme, place) for place in (Place(), *(Place.of(rank, Parallel(2)) for rank in (0, 1)))
    )
    for name, dimension in (("layers.0.down", 1), ("layers.0.attention_out", 1), ("layers.0.gate_up", 0)):
        parts = [panels.unpack(*model.weights.matrices[name]) for model in (first, second)]
        assert parts[0].shape[dimension] % panels.GROUP_INPUTS[scheme] == 0
        assert torch.equal(torch.cat(parts, dimension), panels.unpack(*whole.weights.matrices[name]))
    expected = spread(tmp_path / scheme, Parallel())
    torch.testing.assert_close(spread(tmp_path / scheme, Parallel(2)), expected, atol=0.1, rtol=0.1)


def test_ranks_that_the_model_has_no_heads_for_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model")
    with pytest.raises(LoadError, match="its 2 key/value heads cannot be dealt evenly to 4 ranks"):
        load(folder, Place.of(0, Parallel(4)))
