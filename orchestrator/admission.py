"""How a ledger's refusal is put to the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from guards.ledger_types import Denied
from orchestrator.errors import QueryError


def refusal(denied: Denied, wanted: int) -> QueryError:
    """The error for a reservation that was denied."""
    if denied.suspended:
        return suspended()
    if denied.never:
        return QueryError(
            f"this request may cost {wanted} tokens, more than the whole {denied.window} budget of "
            f"{denied.limit}; lower max_total_tokens, max_completion_tokens or the effort",
            code="request_exceeds_budget",
            status=429,
            field="max_total_tokens",
            retry_after_s=_until_next(denied.window, datetime.now(UTC)),
        )
    return QueryError(
        f"the {denied.window} budget of {denied.limit} tokens has {denied.used} used and {denied.reserved} "
        f"reserved; this request needs {wanted}",
        code="budget_exceeded",
        status=429,
        retry_after_s=denied.retry_after_s,
    )


def suspended() -> QueryError:
    """The error for a tenant with a limit of 0."""
    return QueryError("this tenant is suspended", code="tenant_suspended", status=403)


def _until_next(window: str, now: datetime) -> int:
    """Seconds until the calendar window (minute, day or month, UTC) after the one of `now` begins."""
    minute = now.replace(second=0, microsecond=0)
    day = minute.replace(hour=0, minute=0)
    following = {
        "minute": minute + timedelta(minutes=1),
        "day": day + timedelta(days=1),
        "month": (day.replace(day=1) + timedelta(days=32)).replace(day=1),
    }
    return max(1, round((following.get(window, minute) - now).total_seconds()))
