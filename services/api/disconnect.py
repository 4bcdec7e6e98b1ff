"""Notices that a client has gone, for streams and plain answers alike.

Starlette cancels nothing when the client of a plain handler leaves, so that its search would run on unpaid
for; here the search is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from orchestrator.handle import SearchHandle

_log = logging.getLogger(__name__)


@asynccontextmanager
async def ends_with_client(receive: Receive, handle: SearchHandle) -> AsyncIterator[asyncio.Event]:
    """End `handle` when the client disconnects inside the block; the event given is set then.

    A search that is still running when the block is left, for whatever reason, has nobody to answer to and
    is ended as well.
    """
    gone = asyncio.Event()

    async def watch() -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception:
            _log.exception("a connection cannot be watched, which counts as gone")
        gone.set()
        handle.stop("client_gone")

    task = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        task.cancel()
        if not handle.done:
            handle.stop("client_gone")
