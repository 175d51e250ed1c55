"""Running a step's rows so that a failure stays with the request it belongs to."""

from traceback import format_exc

import structlog

from dataplane.engine.runner import Row, RowFailure, RowResult, Runner, Scored

_log = structlog.get_logger(__name__)


def execute(runner: Runner, rows: list[Row]) -> list[RowResult]:
    """Run the rows; after an exception run each alone, so that only the offender fails."""
    if not rows:
        return []
    try:
        return _checked(rows, runner.execute(rows))
    except Exception:  # noqa: BLE001 - whatever a model may raise
        # A formatted traceback: a renderer that shows local variables would put a tenant's tokens into the log.
        _log.error("step_failed", rows=len(rows), traceback=format_exc())
    return [_execute_alone(runner, row) for row in rows]


def _execute_alone(runner: Runner, row: Row) -> RowResult:
    try:
        return _checked([row], runner.execute([row]))[0]
    except Exception:  # noqa: BLE001 - whatever a model may raise
        _log.error("row_failed", request_id=row.request_id, traceback=format_exc())
        return RowFailure("the model failed on this request; its neighbours were not affected")


def _checked(rows: list[Row], results: list[RowResult]) -> list[RowResult]:
    """Refuse an answer that would put the engine's books out of step with the model."""
    if len(results) != len(rows):
        raise ValueError(f"the runner answered {len(results)} of {len(rows)} rows")
    for row, result in zip(rows, results, strict=True):
        if isinstance(result, RowFailure):
            continue
        token_id, scores = (result.token_id, result.scores) if isinstance(result, Scored) else (result, [])
        if (token_id is not None) != row.sample:
            raise ValueError(f"the runner {'sampled no' if row.sample else 'sampled a'} token for {row.request_id}")
        if len(scores) != row.num_scores:
            raise ValueError(f"the runner scored {len(scores)} of {row.num_scores} tokens for {row.request_id}")
    return results
