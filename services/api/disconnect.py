"""Notices that a client has gone, for streams and plain answers alike.

Starlette cancels nothing when the client of a plain handler leaves, so that its search would run on unpaid
for; here the search is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from orchestrator.service import SearchHandle


@asynccontextmanager
async def ends_with_client(receive: Receive, handle: SearchHandle) -> AsyncIterator[asyncio.Event]:
    """End `handle` when the client disconnects inside the block; the event given is set then."""
    gone = asyncio.Event()

    async def watch() -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
                handle.stop("client_gone")
                return

    task = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        task.cancel()
