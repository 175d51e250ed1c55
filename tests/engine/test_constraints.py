"""A sequence under a grammar: its constraint hears each token once, is asked before each draw, and is let go of."""

from collections.abc import Sequence

from dataplane.contracts.errors import Code
from dataplane.contracts.generation import FinishReason, Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Row, RowFailure, RowResult

EOS = 7


class Counting:
    """A constraint that allows the number of tokens accepted so far, and the end after ``length`` of them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.accepted: list[int] = []
        self.closed = 0

    def allowed(self) -> bytes | RowFailure:
        if self.length < 0:
            return RowFailure("the grammar: it is too complex", Code.GRAMMAR_FAILED)
        token_id = EOS if len(self.accepted) == self.length else 10 + len(self.accepted)
        return (1 << token_id).to_bytes(8, "little")

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)

    def close(self) -> None:
        self.closed += 1


class Obedient:
    """A runner that draws the greatest token that is allowed, else 1."""

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        return [self._draw(row) if row.sample else None for row in rows]

    def _draw(self, row: Row) -> RowResult:
        allowed = row.allowed()
        if isinstance(allowed, bytes):
            return int.from_bytes(allowed, "little").bit_length() - 1
        return 1 if allowed is None else allowed


class Bench:
    def __init__(self, *lengths: int, num_blocks: int = 32) -> None:
        self.constraints: list[Counting] = []
        self._lengths = list(lengths)
        config = EngineConfig(num_blocks=num_blocks, block_size=8, max_model_len=8 * num_blocks, prefix_cache=False)
        self.engine = Engine(
            config,
            Obedient(),
            {},
            salt_secret=b"s",
            version_digest="v",
            eos_token_ids=(EOS,),
            constrain=self._constrain,
        )
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}

    def _constrain(self, request: Submit) -> Counting:
        assert request.sampling.grammar
        self.constraints.append(Counting(self._lengths.pop(0)))
        return self.constraints[-1]

    def submit(self, request_id: str, *, grammar: str = "output", n: int = 1, max_tokens: int = 20) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, grammar=grammar)
        self.engine.submit(Submit(request_id, "acme", [1] * 9, sampling, n))

    def run(self) -> None:
        while self.engine.has_work:
            for delta in self.engine.step():
                self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
                if delta.finish_reason is not None:
                    self.ends[delta.request_id] = delta.finish_reason


def test_each_drawn_token_is_told_once_and_the_end_lets_go() -> None:
    bench = Bench(3)
    bench.submit("a")
    bench.submit("free", grammar="", max_tokens=5)
    bench.run()
    assert bench.tokens == {"a": [10, 11, 12, EOS], "free": [1] * 5}
    (constraint,) = bench.constraints
    assert constraint.accepted == [10, 11, 12]
    assert constraint.closed == 1


def test_each_choice_of_a_request_has_a_constraint_of_its_own() -> None:
    bench = Bench(2, 4)
    bench.submit("a", n=2)
    bench.run()
    assert bench.tokens == {"a": [10, 11, EOS], "a#1": [10, 11, 12, 13, EOS]}
    assert [constraint.closed for constraint in bench.constraints] == [1, 1]


def test_a_constraint_that_fails_ends_its_request_alone() -> None:
    bench = Bench(-1, 2)
    bench.submit("bad")
    bench.submit("good")
    bench.run()
    assert bench.ends == {"bad": FinishReason.ERROR, "good": FinishReason.STOP}
    assert bench.constraints[0].closed == 1


def test_a_preempted_sequence_goes_on_where_its_constraint_is() -> None:
    bench = Bench(30, 30, num_blocks=8)
    bench.submit("a", max_tokens=40)
    bench.submit("b", max_tokens=40)
    bench.run()
    assert bench.engine.load().num_preemptions > 0
    for constraint in bench.constraints:
        assert constraint.accepted == list(range(10, 40))


def test_an_abort_lets_go_of_the_constraint() -> None:
    bench = Bench(10)
    bench.submit("a")
    bench.engine.step()
    bench.engine.abort("a")
    assert bench.constraints[0].closed == 1
