"""Decode steps of a Llama-shaped model by the executor and the graphs that serve; random weights."""

from array import array
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row
from dataplane.kernels.triton.weight_only import Int4Weight, quantise_int4
from dataplane.model.architectures import architecture_of
from dataplane.model.decode_graphs import BUCKETS, CudaRecorder, Decoded, GraphedExecutor, Recording
from dataplane.model.device_weights import DeviceWeights, Matrix
from dataplane.model.kv_pool import KvPool
from dataplane.model.model_runner import ModelRunner
from dataplane.model.packing import matrix_shapes
from dataplane.model.program import Program
from dataplane.model.triton_executor import TritonExecutor

BLOCK_SIZE = 8
CONFIG = ModelConfig(
    architecture="llama", vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_layers=16, num_heads=32,
    num_kv_heads=8, head_dim=64, context_tokens=2048, rms_norm_eps=1e-5, rope_theta=5e5, tied_embeddings=True,
    attention_bias=False, mlp_bias=False, weight_dtype="bf16", bos_token_id=None, eos_token_ids=(),
)  # fmt: skip
"""Sizes of a 1.2 B model."""
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class DecodeSteps:
    """A runner whose rows, up to ``most_rows`` at once, have ``context`` tokens each; bf16, or int4 but the head."""

    def __init__(self, most_rows: int, context: int, *, four_bits: bool) -> None:
        self._context = context
        self._blocks = -(-context // BLOCK_SIZE)
        self._recorder, self._recorded = CudaRecorder(), list[Recording]()
        program = architecture_of(CONFIG).program(CONFIG)
        self._weights = _random_weights(program, four_bits=four_bits)
        self._pool = KvPool(program, most_rows * self._blocks, BLOCK_SIZE, "bf16", "cuda")
        self._pool.data.normal_()
        executor = TritonExecutor(program, self._weights, "cuda")
        graphed = GraphedExecutor(executor, self._pool, CONFIG.context_tokens, lambda: self._record)
        self.runner = ModelRunner(CONFIG, graphed, self._pool, CONFIG.context_tokens)
        self._order = np.random.default_rng(0).permutation(most_rows * self._blocks)

    def _record(self, work: Callable[[], Decoded]) -> Recording:
        self._recorded.append(self._recorder(work))
        return self._recorded[-1]

    def replay(self, rows: int) -> Callable[[], None]:
        """Return what computes the last step of so many rows again, without a word to the host."""
        bucket = next(bucket for bucket in BUCKETS if bucket >= rows)
        return self._recorded[::-1][BUCKETS.index(bucket)].replay  # recorded from the largest

    def rows(self, count: int) -> list[Row]:
        """Return a step of ``count`` rows, each at the end of its context, its blocks scattered over the pool."""
        tables = (array("i", self._order[row * self._blocks : (row + 1) * self._blocks]) for row in range(count))
        return [
            Row(str(row), [row], self._context - 1, table, True, _GREEDY, 1, ()) for row, table in enumerate(tables)
        ]

    def read_bytes(self, rows: int) -> int:
        """What a step of so many rows must read: every weight, and the keys and values of every row."""
        weights = sum(tensor.nbytes for matrix in self._weights.matrices.values() for tensor in _tensors(matrix))
        return weights + self._pool.data.nbytes * rows * self._blocks // self._pool.num_blocks


def _random_weights(program: Program, *, four_bits: bool) -> DeviceWeights:
    matrices: dict[str, Matrix] = {}
    for name, (outputs, inputs) in matrix_shapes(program).items():
        matrix = torch.randn(outputs, inputs, device="cuda") * inputs**-0.5
        matrices[name] = quantise_int4(matrix) if four_bits and name != "embedding" else matrix.bfloat16()
    names = [f"layers.{layer}.{part}_norm" for layer in range(CONFIG.num_layers) for part in ("attention", "mlp")]
    vectors = {name: torch.ones(CONFIG.hidden_size, device="cuda") for name in (*names, "norm")}
    return DeviceWeights(matrices, vectors, torch.bfloat16)


def _tensors(matrix: Matrix) -> tuple[Tensor, ...]:
    if isinstance(matrix, Tensor):
        return (matrix,)
    minimums = (matrix.minimums,) if isinstance(matrix, Int4Weight) else ()
    return (matrix.codes, matrix.scales, *minimums)
