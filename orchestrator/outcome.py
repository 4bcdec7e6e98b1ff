"""What a query comes back with, and how one that failed is put."""

from __future__ import annotations

from dataclasses import dataclass

from engines.protocol import EngineRefused
from orchestrator.errors import QueryError, engine_unavailable
from orchestrator.receipt import Receipt, Status


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a query.

    Args:
        status: `completed`, `partial` (cut short; the best so far) or `failed` (no text at all).
        text: the whole text of the chosen branch; empty when failed.
        answer: the final answer extracted from it, None where it has none or was cut short.
        complete: the model ended the text by itself.
        answer_tokens: generated tokens on the chosen branch.
        error: why it failed; None otherwise.
        log: the event log as JSON lines, where the request asked for it.
    """

    status: Status
    text: str
    answer: str | None
    complete: bool
    answer_tokens: int
    receipt: Receipt
    error: QueryError | None = None
    log: str | None = None


def failure(
    model: str,
    stop_reason: str,
    *,
    engine_lost: bool,
    refused: EngineRefused | None,
    reasons: list[str],
) -> QueryError:
    """The error of a search that ended without one token of an answer."""
    if refused is not None:
        return QueryError(str(refused), code="unsupported_parameter", status=400, field=refused.field)
    if stop_reason == "deadline":
        return QueryError(
            "the deadline passed before the first token",
            code="deadline_exceeded",
            status=504,
            field="deadline_ms",
        )
    if stop_reason == "shutdown":
        return QueryError("the server is shutting down", code="shutting_down", status=503, retry_after_s=10)
    if engine_lost:
        return engine_unavailable(model)
    why = f": {reasons[0]}" if reasons else ""
    return QueryError(f"all samples failed{why}", code="generation_failed", status=502)
