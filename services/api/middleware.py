"""Pure ASGI middleware: request ids, room, authentication, bodies. None of it hides a disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guards.store import StoreUnavailable
from guards.tenants import Tenant
from orchestrator.errors import QueryError, ledger_unavailable
from services.api.errors import error_response, internal_error_response, query_error_response

_log = logging.getLogger(__name__)
Authenticate = Callable[[str], Awaitable[Tenant | None]]
_DISCARD_BYTES = 16 * 1024 * 1024
_DISCARD_S = 5.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def header(scope: Scope, name: bytes) -> str | None:
    """A header's value; the first one where it is repeated."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def _is_api(scope: Scope) -> bool:
    """Whether a request needs a key and may have a body; the others are health, metrics and the like."""
    return scope["type"] == "http" and str(scope["path"]).startswith("/v1/")


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


class RequestId:
    """Gives every answer an `x-request-id`: the client's own where it is well-formed, else a new one.

    What nobody else handled is logged and answered here, so that such an answer and its line in the log have
    the id too. The id is `request_id` in the request's state and on the log record.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header(scope, b"x-request-id") or ""
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def stamped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, stamped)
        except Exception as e:
            _log.exception(
                "unhandled %s at %r, request %s",
                type(e).__name__,
                scope["path"],
                request_id,
                extra={"request_id": request_id},
            )
            if started:
                raise  # which cuts the connection, so that nobody takes a part for the whole
            await internal_error_response()(scope, receive, stamped)


class Concurrency:
    """Answers 503 to requests beyond `limit` at one time."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_api(scope):
            await self._app(scope, receive, send)
            return
        if self._running >= self._limit:
            full = QueryError(
                f"{self._limit} requests are being served, which is the limit",
                code="overloaded",
                status=503,
                retry_after_s=1,
            )
            await query_error_response(full)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class BodyLimit:
    """Takes a whole body before anything else looks at it, within `max_bytes` and `timeout_s` seconds.

    A larger one is refused with 413, by its declared length or as soon as it grows past the limit; a slower
    one with 408.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_api(scope):
            await self._app(scope, receive, send)
            return
        declared = header(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._max:
            await self._refuse(scope, receive, send)
            return
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._max or not more:
                        break
        except TimeoutError:
            response = error_response(
                f"the body did not arrive within {self._timeout_s:g} s", status=408, code="body_timeout"
            )
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        if len(body) > self._max:
            await self._refuse(scope, receive if more else _nothing, send)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = error_response(
            f"the body is larger than the limit of {self._max} bytes", status=413, code="body_too_large"
        )
        response.headers["Connection"] = "close"
        await self._discard(receive)
        await response(scope, receive, send)

    async def _discard(self, receive: Receive) -> None:
        """Read on for a while: a client that is cut off while it still sends never sees the answer."""
        left = _DISCARD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return


class Authentication:
    """Turns the bearer key of `/v1/` requests into a tenant, before any body is read."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate) -> None:
        self._app = app
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_api(scope):
            await self._app(scope, receive, send)
            return
        scheme, _, key = (header(scope, b"authorization") or "").partition(" ")
        tenant: Tenant | None = None
        if scheme.lower() == "bearer" and key:
            try:
                tenant = await self._authenticate(key.strip())
            except StoreUnavailable:
                await query_error_response(ledger_unavailable())(scope, receive, send)
                return
        if tenant is None:
            message = (
                "no API key was given; send 'Authorization: Bearer <key>'" if not key else "invalid API key"
            )
            code = "missing_api_key" if not key else "invalid_api_key"
            await error_response(message, status=401, code=code)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)
