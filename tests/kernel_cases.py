"""Cases of the GPU's kernels: interpreted (tests/kernels), compiled ahead of time, and run on a GPU (tests/gpu, bench).

A case makes its inputs from its own name, launches a kernel with copies of them on a device, and computes the same by
the kernel's plain-torch reference. Needs nothing but torch and Triton.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dataplane.kernels.triton import gated, kv_write, norms, paged_attention, rotary, sampling, weight_only
from dataplane.kernels.triton.paged_attention import AttentionRows, attention_tiles

FP32, FP16, BF16, INT8 = torch.float32, torch.float16, torch.bfloat16, torch.int8
BLOCK_SIZE = 8
TOLERANCES = {FP32: 3e-5, FP16: 4e-3, BF16: 2e-2, torch.int64: 0.0, torch.bool: 0.0, INT8: 1.0}
"""Of results, by dtype: a rounding of the result or of a factor. A code of int8 may be the next one."""


@dataclass(frozen=True)
class Case:
    """A kernel, its reference, and what makes the inputs of both.

    Attributes:
        name: what differs from the other cases of the kernel.
        kernel, reference: called alike; what they return, or else what they change, is compared.
        inputs: makes positional and keyword arguments, on the CPU.
        changed: which positional arguments are written.
    """

    name: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Callable[[torch.Generator], tuple[list[Any], dict[str, Any]]]
    changed: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel.__name__}[{self.name}]"

    def arguments(self, device: str) -> tuple[list[Any], dict[str, Any]]:
        """Make the inputs, on ``device``."""
        generator = torch.Generator().manual_seed(zlib.crc32(str(self).encode()))
        return moved(self.inputs(generator), device)

    def launch(self, device: str) -> list[Tensor]:
        """Run the kernel."""
        return self._results(self.kernel, device)

    def expected(self) -> list[Tensor]:
        """Run the reference, on the CPU."""
        return self._results(self.reference, "cpu")

    def check(self, device: str) -> None:
        """Raise an AssertionError where the two differ by more than roundings."""
        for actual, expected in zip(self.launch(device), self.expected(), strict=True):
            tolerance = TOLERANCES[actual.dtype]
            torch.testing.assert_close(
                actual.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True, msg=str(self)
            )

    def _results(self, function: Callable[..., Any], device: str) -> list[Tensor]:
        positional, named = self.arguments(device)
        returned = function(*positional, **named)
        results = [] if returned is None else list(returned) if isinstance(returned, tuple) else [returned]
        return results + [positional[index] for index in self.changed if positional[index] is not None]


def moved(value: Any, device: str) -> Any:
    """Return ``value`` with every tensor in it on ``device``."""
    if isinstance(value, list | tuple):
        return type(value)(moved(each, device) for each in value)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, AttentionRows | weight_only.Int8Weight | weight_only.Int4Weight):
        fields = {name: getattr(value, name) for name in value.__slots__}
        return replace(value, **{key: each.to(device) for key, each in fields.items() if isinstance(each, Tensor)})
    return value


@dataclass(frozen=True)
class Sequences:
    """A step: of each sequence, how much stands in the KV pool and how many tokens are computed now."""

    positions: tuple[int, ...]
    counts: tuple[int, ...]
    group: int = 4
    kv_heads: int = 1
    head_dim: int = 64
    query: torch.dtype = FP32
    pool: torch.dtype = FP32
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = " ".join(f"{count}@{position}" for count, position in zip(self.counts, self.positions, strict=True))
        dtypes = f"{self.query}-{self.pool}".replace("torch.", "")
        return f"{rows} {self.group}x{self.kv_heads}x{self.head_dim} {dtypes} {self.options or ''}".strip()

    def inputs(self, generator: torch.Generator) -> tuple[list[Any], dict[str, Any]]:
        """Make query, pool and rows, padded by a token and a tile; what nobody may read is NaN, or a scale of NaN."""
        counts, positions = torch.tensor(self.counts), torch.tensor(self.positions)
        ends = (counts + positions).tolist()
        blocks = [-(-end // BLOCK_SIZE) for end in ends]
        order = torch.randperm(sum(blocks) + 2, generator=generator)
        tables = torch.full((len(ends), max(blocks)), 10**6, dtype=torch.int32)  # beyond its blocks a table is garbage
        pool = torch.full((len(order), BLOCK_SIZE, 2, self.kv_heads, self.head_dim), torch.nan)
        scales = torch.full(pool.shape[:-1], torch.nan)
        window = self.options.get("window", 0)
        for row, end in enumerate(ends):
            tables[row, : blocks[row]] = order[sum(blocks[:row]) : sum(blocks[: row + 1])]
            at = torch.arange(max(0, self.positions[row] - window + 1) if window else 0, end)
            place = tables[row].long()[at // BLOCK_SIZE], at % BLOCK_SIZE
            pool[place] = torch.randn(len(at), *pool.shape[2:], generator=generator)
            scales[place] = torch.rand(len(at), *pool.shape[2:4], generator=generator) / 40
        query = torch.randn(int(counts.sum()) + 1, self.group * self.kv_heads, self.head_dim, generator=generator)
        standing = [torch.arange(p, p + count) for p, count in zip(self.positions, self.counts, strict=True)]
        rows = AttentionRows(
            positions=torch.cat((*standing, torch.tensor([-1]))).int(),
            tiles=torch.cat((attention_tiles(counts, positions, self.group), torch.zeros(1, 4, dtype=torch.int32))),
            block_tables=tables,
            context_tokens=max(ends),
        )
        named = {"scale": self.head_dim**-0.5, **self.options}
        if self.pool == INT8:
            pool, named["kv_scales"] = (pool.nan_to_num(2) * 40).clamp(-127, 127), scales
        return [query.to(self.query), pool.to(self.pool), rows], named

    def case(self) -> Case:
        """Return the case of paged attention."""
        return Case(str(self), _attention, _reference_attention, self.inputs)


def _attention(query: Tensor, pool: Tensor, rows: AttentionRows, **options: Any) -> Tensor:
    attended = paged_attention.paged_attention(query, pool, rows, **options)
    return attended[: int((rows.positions >= 0).sum())]


def _reference_attention(query: Tensor, pool: Tensor, rows: AttentionRows, **options: Any) -> Tensor:
    results, first = [], 0
    tiles = rows.tiles[rows.tiles[:, 2] > 0].tolist()
    for row in sorted({tile[3] for tile in tiles}):
        mine = [tile for tile in tiles if tile[3] == row]
        position, count = mine[0][1], sum(tile[2] for tile in mine)
        table = rows.block_tables[row, : -(-(position + count) // pool.shape[1])].long()
        part = query[first : first + count]
        results.append(paged_attention.reference_paged_attention(part, pool, table, position, **options))
        first += count
    return torch.cat(results)


def quick_attention() -> Iterator[Case]:
    """Borders of blocks and splits, a mixed step, a window, an int8 pool: what breaks first."""
    yield Sequences((7, 255), (1, 2), group=3).case()
    yield Sequences((511,), (2,), group=5, options={"window": 300, "softcap": 20.0}).case()
    yield Sequences((30,), (1,), group=8, head_dim=96, query=BF16, pool=INT8).case()


def all_attention() -> Iterator[Case]:
    """Every edge of the masks."""
    yield from quick_attention()
    for group in (1, 3, 4, 5, 8):
        for head_dim in (64, 96, 128, 256):
            mixed = Sequences((0, 300, 17, 8), (9, 1, 20, 1), group=group, head_dim=head_dim)
            yield mixed.case()
            yield replace(mixed, query=BF16, pool=BF16, options={"window": 24}).case()
    pools = ((FP32, FP16), (FP32, INT8), (FP16, FP16), (FP16, INT8), (BF16, FP16), (BF16, INT8), (BF16, FP32))
    for query, pool in pools:
        for head_dim in (64, 128, 256):
            yield Sequences((0, 260, 70), (1, 1, 5), kv_heads=2, head_dim=head_dim, query=query, pool=pool).case()
    borders = (0, 6, 7, 8, 63, 64, 254, 255, 256, 257, 510, 511, 512, 513)
    yield Sequences(borders, (1,) * len(borders)).case()
    yield Sequences(borders, (3,) * len(borders), group=5).case()
    for window in (1, 2, 8, 63, 64, 65, 255, 256, 257):
        yield Sequences((0, 255, 256, 600), (1, 1, 7, 1), options={"window": window}).case()
    for softcap in (0.5, 50.0):
        yield Sequences((255, 256), (1, 2), options={"softcap": softcap}).case()
    yield Sequences((0, 128), (0, 3)).case()  # a row without tokens
    yield Sequences((20,), (1,), group=32).case()  # a group higher than a tensor core
    yield Sequences((20,), (1,), group=64, head_dim=24).case()
    yield Sequences((3, 9), (7, 1), head_dim=8).case()  # narrower than a tensor core
    yield Sequences((8190, 8191, 8192), (1, 1, 1), group=1).case()  # from here on splits are longer
    yield Sequences((9000,), (2,), options={"window": 8000}).case()


def _random(generator: torch.Generator, *shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def write_cases(
    dtypes: tuple[tuple[torch.dtype, torch.dtype], ...], shapes: tuple[tuple[int, int], ...]
) -> Iterator[Case]:
    """Keys and values of a wider matrix into scattered slots, one of them padding."""
    for kv_heads, head_dim in shapes:
        for source, pool in dtypes:

            def inputs(
                generator: torch.Generator,
                kv_heads: int = kv_heads,
                head_dim: int = head_dim,
                source: torch.dtype = source,
                pool: torch.dtype = pool,
            ) -> tuple[list[Any], dict[str, Any]]:
                wide = _random(generator, 4, 3, kv_heads, head_dim, dtype=source)
                wide[2, 1:] = 0  # a scale of zero
                blocks = torch.zeros(5, BLOCK_SIZE, 2, kv_heads, head_dim, dtype=pool)
                scales = torch.zeros(blocks.shape[:-1]) if pool == INT8 else None
                return [wide[:, 1:], torch.tensor([39, -1, 8, 7]), blocks, scales], {}

            name = f"{kv_heads}x{head_dim} {source}-{pool}".replace("torch.", "")
            yield Case(name, kv_write.write_kv, kv_write.reference_write_kv, inputs, changed=(2, 3))


def norm_cases(dims: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Case]:
    """Rows with a residual stream, rows of another dtype than the result, and heads of a part of a wider matrix."""
    for dim in dims:
        for dtype in dtypes:

            def rows(generator: torch.Generator, dim: int = dim, dtype: torch.dtype = dtype) -> Any:
                stream = _random(generator, 3, dim)
                return [_random(generator, 3, dim, dtype=dtype), _random(generator, dim), 1e-5, stream], {}

            def shifted(generator: torch.Generator, dim: int = dim, dtype: torch.dtype = dtype) -> Any:
                vectors = [_random(generator, dim) for _ in range(2)]
                return [_random(generator, 3, dim, dtype=dtype) + 5, *vectors, 1e-5, _random(generator, 3, dim)], {}

            def narrowed(generator: torch.Generator, dim: int = dim, dtype: torch.dtype = dtype) -> Any:
                given = [_random(generator, 3, dim) + 5, _random(generator, dim), _random(generator, dim), 1e-5]
                return given, {"out": torch.empty(3, dim, dtype=dtype)}

            def heads(generator: torch.Generator, dim: int = dim, dtype: torch.dtype = dtype) -> Any:
                part = _random(generator, 3, 5, dim, dtype=dtype)[:, 1:4]
                return [part, _random(generator, dim), 1e-6], {"out": part}

            name = f"{dim} {dtype}".replace("torch.", "")
            layer = (norms.layer_norm, norms.reference_layer_norm)
            yield Case(f"{name} residual", norms.rms_norm, norms.reference_rms_norm, rows, changed=(3,))
            yield Case(f"{name} heads in place", norms.rms_norm, norms.reference_rms_norm, heads)
            yield Case(f"{name} residual", *layer, shifted, changed=(4,))
            yield Case(f"{name} narrowed", *layer, narrowed)


def rotary_cases(shapes: tuple[tuple[int, int, int], ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Case]:
    """Heads of a part of a wider matrix, whole or in part."""
    for count, head_dim, width in shapes:
        for dtype in dtypes:

            def inputs(
                generator: torch.Generator,
                count: int = count,
                head_dim: int = head_dim,
                width: int = width,
                dtype: torch.dtype = dtype,
            ) -> Any:
                turns = _random(generator, 3, width // 2)
                angles = torch.stack((turns.cos(), turns.sin()), dim=-1).flatten(1)
                return [_random(generator, 3, count + 2, head_dim, dtype=dtype)[:, :count], angles], {}

            name = f"{count}x{head_dim} {width} {dtype}".replace("torch.", "")
            yield Case(name, rotary.rotate_, rotary.reference_rotate_, inputs, changed=(0,))


def gated_cases(dims: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Case]:
    """Both activations, also far from zero."""
    for dim in dims:
        for dtype in dtypes:

            def inputs(generator: torch.Generator, dim: int = dim, dtype: torch.dtype = dtype) -> Any:
                return [(_random(generator, 2, 2 * dim) * 4).to(dtype)], {}

            name = f"{dim} {dtype}".replace("torch.", "")
            yield Case(name, gated.silu_mul, gated.reference_silu_mul, inputs)
            yield Case(name, gated.gelu_tanh_mul, gated.reference_gelu_tanh_mul, inputs)


def linear_cases(
    shapes: tuple[tuple[int, int, int], ...], groups: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...]
) -> Iterator[Case]:
    """Rows x inputs x outputs, with a bias where the rows are odd; int4, and int8 by channel or group.

    Inputs that are no whole groups: the weight is filled up, with what would show if it were multiplied.
    """
    for rows, inputs, outputs in shapes:
        for dtype in dtypes:
            for group in groups:

                def arguments(
                    generator: torch.Generator,
                    shape: tuple[int, int, int] = (rows, inputs, outputs),
                    dtype: torch.dtype = dtype,
                    group: int | None = group,
                ) -> Any:
                    whole = {4: weight_only.INT4_GROUP, None: 1}.get(group, group)
                    matrix = _random(generator, shape[2], shape[1] + -shape[1] % whole) * shape[1] ** -0.5
                    bias = _random(generator, shape[2]) if shape[0] % 2 else None
                    quantised = (
                        weight_only.quantise_int4(matrix) if group == 4 else weight_only.quantise_int8(matrix, group)
                    )
                    return [_random(generator, *shape[:2], dtype=dtype), quantised, bias], {}

                name = f"{rows}x{inputs}x{outputs} {dtype} {group or 'channel'}".replace("torch.", "")
                kernel = weight_only.int4_linear if group == 4 else weight_only.int8_linear
                yield Case(name, kernel, weight_only.reference_linear, arguments)


def _likeliest(logits: Tensor) -> tuple[Tensor, ...]:
    return _where_finite(sampling.likeliest(logits))


def _reference_likeliest(logits: Tensor) -> tuple[Tensor, ...]:
    return _where_finite(sampling.reference_likeliest(logits))


def _where_finite(found: sampling.Likeliest) -> tuple[Tensor, ...]:
    """What a row holds that is not finite means nothing."""
    return found.token_ids * found.finite, found.logits.where(found.finite, 0.0), found.finite


def likeliest_cases(vocabularies: tuple[int, ...]) -> Iterator[Case]:
    """The likeliest of rows with ties, NaN and infinities."""
    for vocab in vocabularies:

        def rows(generator: torch.Generator, vocab: int = vocab) -> Any:
            logits = _random(generator, 5, vocab)
            logits[1, [3, vocab - 1]] = 9.0
            logits[2, 2], logits[3, vocab - 1], logits[4, 0] = torch.nan, -torch.inf, torch.inf
            return [logits], {}

        yield Case(f"{vocab}", _likeliest, _reference_likeliest, rows)


def draw_cases(vocabularies: tuple[int, ...]) -> Iterator[Case]:
    """Draws under every filter, with ties and a banned token."""
    for vocab in vocabularies:

        def draws(generator: torch.Generator, vocab: int = vocab) -> Any:
            filters = [(1.0, 0.0, 0, 1.0), (0.7, 0.0, 5, 1.0), (1.3, 0.0, 0, 0.9), (0.7, 0.05, 0, 1.0)]
            filters += [(2.0, 0.01, 40, 0.5), (1.0, 0.0, 0, 0.0), (1e-6, 0.0, 0, 1.0), (1.0, 0.0, 3, 0.5)]
            logits = _random(generator, len(filters), vocab) * 3
            logits[7, :4] = 20.0  # four tie for the third place
            logits[:, 1] = -torch.inf
            temperature, min_p, top_k, top_p = torch.tensor(filters, dtype=torch.float64).T.contiguous()
            points = torch.rand(len(filters), generator=generator, dtype=torch.float64)
            return [logits, logits.amax(-1), temperature, min_p, top_k.int(), top_p, points], {}

        yield Case(f"{vocab}", sampling.draw, sampling.reference_draw, draws)


def quick_cases() -> list[Case]:
    """A few seconds in the interpreter."""
    return [
        *quick_attention(),
        *write_cases(((FP16, INT8),), ((3, 64),)),
        *norm_cases((96,), (FP32,)),
        *rotary_cases(((2, 96, 24),), (FP32,)),
        *gated_cases((1030,), (FP16,)),
        *linear_cases(((3, 150, 70),), (4, None, 64), (FP32,)),
        *likeliest_cases((600,)),
    ]


def quick_to_compile() -> list[Case]:
    """A few seconds of compiling: what uses tensor cores, and the pipeline of loads."""
    attention = Sequences((0,), (1,), group=4, head_dim=128, query=BF16, pool=BF16).case()
    return [attention, *linear_cases(((1, 512, 64),), (4,), (BF16,)), next(norm_cases((576,), (BF16,)))]


def all_to_compile() -> list[Case]:
    """Minutes of compiling: what differs in machine code between the models that we run."""
    one = Sequences((0,), (1,), head_dim=128, query=BF16, pool=BF16)
    attention = [replace(one, group=group) for group in (1, 3, 5, 8, 32, 64)]
    attention += [replace(one, group=64, head_dim=256, query=query, pool=query) for query in (FP32, BF16)]
    for query, pool in ((FP32, FP32), (FP16, FP16), (BF16, BF16), (BF16, FP16), (FP32, INT8), (BF16, INT8)):
        attention += [replace(one, head_dim=head_dim, query=query, pool=pool) for head_dim in (8, 64, 96, 128, 256)]
    attention += [replace(one, head_dim=256, options=options) for options in ({"window": 1024}, {"softcap": 50.0})]
    floats = (FP32, FP16, BF16)
    return [
        *(sequences.case() for sequences in attention),
        *write_cases(((FP32, FP32), (BF16, BF16), (FP32, INT8), (BF16, INT8)), ((3, 64), (8, 128), (4, 256))),
        *norm_cases((128, 576, 4096), floats),
        *rotary_cases(((12, 64, 64), (40, 128, 128), (9, 256, 256)), floats),
        *gated_cases((1536,), floats),
        *linear_cases(((1, 576, 64), (64, 2048, 4096)), (4, None, 64), floats),
        *likeliest_cases((600,)),
        *draw_cases((600,)),
    ]


def all_cases() -> list[Case]:
    """Minutes in the interpreter; every configuration that a model can ask for."""
    floats = (FP32, FP16, BF16)
    products = ((1, 576, 1536), (2, 1536, 576), (17, 2048, 130), (64, 96, 64), (70, 64, 33))
    pools = (*((dtype, dtype) for dtype in floats), *((dtype, INT8) for dtype in floats), (BF16, FP16))
    cases = [
        *quick_cases(),
        *all_attention(),
        *write_cases(pools, ((1, 64), (3, 96), (8, 128), (4, 256))),
        *norm_cases((1, 64, 128, 576, 4096, 6000), floats),
        *rotary_cases(((12, 64, 64), (5, 96, 96), (40, 128, 128), (9, 256, 256), (4, 128, 32)), floats),
        *gated_cases((1, 1024, 1536), floats),
        *linear_cases(products, (4, None, 32), floats),
        *linear_cases(((1, 256, 70), (5, 512, 64)), (64, 128), (BF16,)),
        *linear_cases(((2, 1, 33), (17, 104, 64), (3, 1032, 70)), (4, 64), floats),
        *likeliest_cases((5, 8192, 8193, 49_152)),
        *draw_cases((5, 600, 1025, 8192)),
    ]
    return list({str(case): case for case in cases}.values())
