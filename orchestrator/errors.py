"""Why a query was not taken or not answered. Messages are safe to show to a client."""

from __future__ import annotations


class QueryError(Exception):
    """Base of all failures of a query.

    Args:
        code: a stable word for programs.
        status: the HTTP status that fits.
        field: the request field at fault, if one is.
        retry_after_s: when another try makes sense, in seconds; None when it does not, or is unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        field: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.field = field
        self.retry_after_s = retry_after_s


def unknown_model(name: str, known: list[str]) -> QueryError:
    return QueryError(
        f"unknown model {name!r}; served here: {', '.join(known)}",
        code="model_not_found",
        status=404,
        field="model",
    )


def engine_unavailable(model: str) -> QueryError:
    return QueryError(
        f"no engine of {model!r} is ready", code="engine_unavailable", status=503, retry_after_s=5
    )


def overloaded(limit: int) -> QueryError:
    return QueryError(
        f"{limit} searches are running, which is the limit", code="overloaded", status=503, retry_after_s=1
    )


def shutting_down() -> QueryError:
    return QueryError("the server is shutting down", code="shutting_down", status=503, retry_after_s=10)


def ledger_unavailable() -> QueryError:
    return QueryError(
        "the token ledger cannot be reached, so no spending is allowed",
        code="ledger_unavailable",
        status=503,
        retry_after_s=5,
    )


def deadline_exceeded() -> QueryError:
    return QueryError(
        "the deadline passed before the first token",
        code="deadline_exceeded",
        status=504,
        field="deadline_ms",
    )


def overloaded_memory(model: str) -> QueryError:
    return QueryError(
        f"the KV cache of {model!r} has no room for this query now",
        code="overloaded",
        status=503,
        retry_after_s=5,
    )
