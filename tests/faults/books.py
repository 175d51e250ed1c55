"""The invariants that hold after every fault: requests and their rows, blocks and their owners."""

from collections.abc import Iterable

from callers import Call
from running_stack import RunningStack, wait_for

ROWS = """
SELECT request_id, state, delivered_tokens, completion_tokens, generated_tokens
FROM metering_usagerow WHERE request_id = ANY(%s)
"""


class Books:
    """The invariants that hold after every fault."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack = stack
        self._calls: list[Call] = []

    def enter(self, calls: Iterable[Call]) -> None:
        """Remember calls. Their rows are asked for after the last test: a row may wait a minute for a lost gateway."""
        self._calls += calls

    def require_one_settled_row_a_call(self) -> None:
        """Each accepted request has exactly one settled row, and delivered <= billed <= generated."""
        ids = {call.request_id for call in self._calls if call.request_id and call.ended != "refused"}

        def settled() -> list[dict[str, object]]:
            rows = self._stack.query(ROWS, list(ids))
            return rows if len(rows) == len(ids) and all(row["state"] == "settled" for row in rows) else []

        rows = wait_for(settled, f"a settled row for each of {len(ids)} requests")
        for row in rows:
            assert row["delivered_tokens"] <= row["completion_tokens"] <= row["generated_tokens"], row

    def require_idle_pool(self) -> None:
        """The serving replica has nothing to do, and every block of its pool is free or cached."""

        def idle() -> dict[str, int] | None:
            load = self._stack.serving_replica()["load"]
            return load if load["num_running"] == load["num_waiting"] == 0 else None

        load = wait_for(idle, "an idle replica")
        assert load["owned_blocks"] == 0, load
        assert load["free_blocks"] + load["cached_blocks"] == load["total_blocks"], load
