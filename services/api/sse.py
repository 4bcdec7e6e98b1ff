"""A server-sent-events response that starts late, keeps the line alive and stops when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.errors import QueryError
from orchestrator.service import SearchHandle
from services.api.disconnect import ends_with_client
from services.api.errors import error_object, query_error_response

HEARTBEAT_S = 10.0


class EventStream(Response):
    """Sends objects as `data:` events, then `[DONE]`.

    The status line waits for the first event (at most one heartbeat), so that a query that fails before its
    first token is answered with a proper status. A failure after that is an `error` event.
    """

    def __init__(self, events: AsyncIterator[dict[str, Any]], handle: SearchHandle) -> None:
        self._events = events
        self._handle = handle
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with ends_with_client(receive, self._handle) as gone:
            await self._run(scope, receive, send, gone)

    async def _run(self, scope: Scope, receive: Receive, send: Send, gone: asyncio.Event) -> None:
        started = False
        upcoming: asyncio.Task[dict[str, Any]] | None = None
        left = asyncio.create_task(gone.wait())
        try:
            while not gone.is_set():
                upcoming = upcoming or asyncio.ensure_future(_next(self._events))
                await asyncio.wait({upcoming, left}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.is_set():
                    return
                if upcoming.done():
                    try:
                        data = b"data: " + orjson.dumps(upcoming.result()) + b"\n\n"
                    except StopAsyncIteration:
                        break
                    except QueryError as e:
                        if not started:
                            await query_error_response(e)(scope, receive, send)
                            return
                        event = error_object(str(e), status=e.status, code=e.code, param=e.field)
                        data = b"data: " + orjson.dumps(event) + b"\n\n"
                    upcoming = None
                else:
                    data = b": keep-alive\n\n"
                if not started:
                    started = True
                    await self._begin(send)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if not gone.is_set():
                await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        finally:
            left.cancel()
            if upcoming is not None:
                upcoming.cancel()

    async def _begin(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-pondera-search-id", self._handle.search_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _next(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await anext(events)
