"""Every failure as an OpenAI error object with the right status."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from orchestrator.errors import QueryError
from services.api.encoding import JsonAnswer, escaped

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MAX_LEGAL = 400
_MAX_PARAM = 128


def error_object(message: str, *, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The body of an error answer; it can be encoded whatever the message quotes."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    where = None if param is None else escaped(param)
    return {"error": {"message": escaped(message), "type": kind, "param": where, "code": code}}


def error_response(
    message: str,
    *,
    status: int,
    code: str,
    param: str | None = None,
    retry_after_s: int | None = None,
    extra: dict[str, Any] | None = None,
) -> JSONResponse:
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_object(message, status=status, code=code, param=param) | (extra or {})
    return JsonAnswer(body, status_code=status, headers=headers)


def query_error_response(error: QueryError, extra: dict[str, Any] | None = None) -> JSONResponse:
    return error_response(
        str(error),
        status=error.status,
        code=error.code,
        param=error.field,
        retry_after_s=error.retry_after_s,
        extra=extra,
    )


def internal_error_response() -> JSONResponse:
    """The answer to a fault of our own; what it was is in the log, under the answer's request id."""
    return error_response("internal error", status=500, code="internal_error")


def describe(error: dict[str, Any], body: Any) -> tuple[str, str | None]:
    """A validation error as (message that names field and legal values, dotted field).

    Args:
        error: one of `RequestValidationError.errors()`.
        body: what was validated.
    """
    kind, message, context = error["type"], error["msg"], error.get("ctx", {})
    field = ".".join(_place(error["loc"], body, missing=kind == "missing"))[:_MAX_PARAM] or None
    if kind == "extra_forbidden":
        message = "this field is not supported"
    elif kind == "value_error":
        message = str(context.get("error", message))
    return (f"{field}: {message}" if field else message)[:_MAX_LEGAL], field


def _place(loc: tuple[str | int, ...], body: Any, *, missing: bool) -> list[str]:
    """The keys and indices of an error's place in the body, without the names of union members."""
    place: list[str] = []
    for part in loc[1:]:
        inside = part in body if isinstance(body, dict) else _has_index(body, part)
        if inside:
            body = body[part]
        elif not (missing and part == loc[-1]):
            continue
        place.append(str(part))
    return place


def _has_index(value: Any, index: str | int) -> bool:
    return isinstance(value, list) and isinstance(index, int) and index < len(value)


def install(app: FastAPI) -> None:
    """Register the handlers. Faults that have none are answered by `middleware.RequestId`."""

    async def on_query(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, QueryError)
        return query_error_response(error)

    async def on_validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        # A union reports one error per member; the first is of the member that the client most likely meant.
        message, field = describe(error.errors()[0], error.body)
        return error_response(message, status=400, code="invalid_value", param=field)

    async def on_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        response = error_response(str(error.detail), status=error.status_code, code=code)
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(QueryError, on_query)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
