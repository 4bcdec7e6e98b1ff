"""How a ledger's refusal is put to the client."""

from __future__ import annotations

from guards.ledger_types import Denied
from orchestrator.errors import QueryError


def refusal(denied: Denied, wanted: int) -> QueryError:
    """The error for a reservation that was denied."""
    if denied.suspended:
        return QueryError("this tenant is suspended", code="tenant_suspended", status=403)
    if denied.never:
        return QueryError(
            f"this request may cost {wanted} tokens, more than the whole {denied.window} budget of "
            f"{denied.limit}; lower max_total_tokens, max_completion_tokens or the effort",
            code="request_exceeds_budget",
            status=429,
            field="max_total_tokens",
        )
    return QueryError(
        f"the {denied.window} budget of {denied.limit} tokens has {denied.used} used and {denied.reserved} "
        f"reserved; this request needs {wanted}",
        code="budget_exceeded",
        status=429,
        retry_after_s=denied.retry_after_s,
    )
