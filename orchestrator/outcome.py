"""What a query comes back with, and how one that failed is put."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.protocol import EngineRefused
from orchestrator.errors import (
    QueryError,
    deadline_exceeded,
    engine_unavailable,
    ledger_unavailable,
    overloaded_memory,
    shutting_down,
)
from orchestrator.receipt import Receipt, Status

BROKEN = frozenset({"engine_lost", "lease_lost", "refused", "all_failed"})
"""Stop reasons that are faults: a text that one of them cut short is no answer, not even a partial one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a query.

    Args:
        status: `completed`, `partial` (cut short by a limit; the best so far) or `failed` (no answer).
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
    reasons: Sequence[str],
) -> QueryError:
    """The error of a search that ended without an answer.

    Args:
        stop_reason: what ended it.
        engine_lost: whether a replica was lost under one of its calls.
        refused: the engine's refusal of the request's parameters, if there was one.
        reasons: why its calls failed, the first few.
    """
    if refused is not None:
        return QueryError(str(refused), code="unsupported_parameter", status=400, field=refused.field)
    if engine_lost and stop_reason in BROKEN:
        return engine_unavailable(model)
    match stop_reason:
        case "deadline":
            return deadline_exceeded()
        case "shutdown":
            return shutting_down()
        case "engine_lost":
            return engine_unavailable(model)
        case "lease_lost":
            return ledger_unavailable()
        case "kv_cap":
            return overloaded_memory(model)
        case "tool_calls_without_strategy":
            return QueryError(
                "every sample calls a tool, and tool_vote 'refuse' votes on none; use tool_vote 'majority'",
                code="tool_calls_without_strategy",
                status=422,
                field="params.tool_vote",
            )
        case "client_gone" | "slow_reader":
            return QueryError("the client is gone", code=stop_reason, status=503)
    why = f": {reasons[0]}" if reasons else ""
    return QueryError(f"all samples failed{why}", code="generation_failed", status=502)
