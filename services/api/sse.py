"""A server-sent-events response that starts late, keeps the line alive and stops when the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from orchestrator.errors import QueryError
from orchestrator.handle import SearchHandle
from services.api.disconnect import ends_with_client
from services.api.encoding import encode
from services.api.errors import error_object, query_error_response

HEARTBEAT_S = 10.0
"""Longest silence on a stream."""
SEND_S = 60.0
"""How long a client may take to accept one event; one that takes longer counts as gone."""
_KEEP_ALIVE = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends objects as `data:` events, then `[DONE]`.

    The status line waits for the first event (at most one heartbeat), so that a query that fails before its
    first token is answered with a proper status. A failure after that is an `error` event. However the stream
    ends, the search has been ended too and `events` is closed.

    Args:
        events: where the objects come from; owned by the stream.
        handle: the search behind them.
    """

    def __init__(self, events: AsyncGenerator[dict[str, Any], None], handle: SearchHandle) -> None:
        self._events = events
        self._handle = handle
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with ends_with_client(receive, self._handle) as gone:
            left = asyncio.create_task(gone.wait())
            steps = _Steps(self._events)
            try:
                await self._run(scope, receive, send, left, steps)
            except _ClientGone:
                _log.debug("a client took no more of %s", self._handle.search_id)
            finally:
                left.cancel()
                await steps.close()

    async def _run(
        self, scope: Scope, receive: Receive, send: Send, left: asyncio.Task[Any], steps: _Steps
    ) -> None:
        while True:
            step = steps.upcoming()
            await asyncio.wait({step, left}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                return
            if not step.done():
                await self._send(send, _KEEP_ALIVE)
                continue
            try:
                event = steps.take()
            except QueryError as e:
                if not self._started:
                    await query_error_response(e)(scope, receive, send)
                    return
                failed = error_object(str(e), status=e.status, code=e.code, param=e.field)
                await self._send(send, _event(failed))
                event = None
            if event is None:
                await self._send(send, _DONE, more=False)
                return
            await self._send(send, event)

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-pondera-search-id", self._handle.search_id.encode()),
            ]
            await self._pass(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await self._pass(send, {"type": "http.response.body", "body": data, "more_body": more})

    async def _pass(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await send(message)
        except OSError as e:  # a TimeoutError is one too
            raise _ClientGone from e


class _ClientGone(Exception):
    """The connection takes nothing more."""


class _Steps:
    """Takes events one by one, each in a task of its own, so that waiting for one can be left and resumed."""

    def __init__(self, events: AsyncGenerator[dict[str, Any], None]) -> None:
        self._events = events
        self._task: asyncio.Task[bytes | None] | None = None

    def upcoming(self) -> asyncio.Task[bytes | None]:
        if self._task is None:
            self._task = asyncio.create_task(self._next())
        return self._task

    async def _next(self) -> bytes | None:
        try:
            return _event(await anext(self._events))
        except StopAsyncIteration:
            return None

    def take(self) -> bytes | None:
        """The upcoming event, which is there; None at the end.

        Raises:
            QueryError: the query failed, or we did.
        """
        task, self._task = self._task, None
        assert task is not None
        # A search that was cancelled from within must not look like the cancellation of this response.
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is None:
            return task.result()
        if isinstance(fault, QueryError):
            raise fault
        _log.error("unhandled %s in a stream", type(fault).__name__, exc_info=fault)
        raise QueryError("internal error", code="internal_error", status=500)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._events.aclose()


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + encode(content) + b"\n\n"
