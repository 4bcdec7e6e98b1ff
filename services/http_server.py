"""The HTTP server: uvicorn, with what it leaves to its user set once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn

_TICK_S = 1.0
_KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection (5 s in httpx and the OpenAI client): a server that closes one
may do so while a request is on its way."""


class HttpServer(uvicorn.Server):
    """Serves an ASGI application until `stop`; leaves signals to whoever runs it.

    Idle, it wakes up once a second to renew the date header, where uvicorn wakes up ten times.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        grace_s: int | None = None,
        on_started: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """A server that `serve(sockets=[...])` runs.

        Args:
            grace_s: how long requests in flight may go on after `stop`; None: until they end.
            on_started: awaited as soon as the server takes requests.
        """
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=grace_s,
                timeout_keep_alive=_KEEP_ALIVE_S,
                server_header=False,
            )
        )
        self._on_started = on_started
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests and end; `serve` returns when those in flight have ended."""
        self.should_exit = True
        self._stopped.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_started is not None:
            await self._on_started()

    async def main_loop(self) -> None:
        # At a multiple of ten, `on_tick` renews the header.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _TICK_S)
