"""A running query, as those see it who wait for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from orchestrator.errors import QueryError
from orchestrator.outcome import Outcome

_MOST_WAITING = 4096


class SearchHandle:
    """One running query.

    Args:
        streams_text: the text of the answer comes piece by piece through `texts`.
        stop: ends the search with a reason, keeping the best so far.
    """

    def __init__(self, search_id: str, model: str, streams_text: bool, stop: Callable[[str], None]) -> None:
        self.search_id = search_id
        self.model = model
        self.streams_text = streams_text
        self.created = int(time.time())
        self.stop = stop
        self._pieces: deque[str] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._overrun = False
        self._task: asyncio.Task[Outcome] | None = None

    def bind(self, task: asyncio.Task[Outcome]) -> None:
        """Set the task whose result is the outcome. To be called once."""
        self._task = task
        task.add_done_callback(self._end)

    def _end(self, _: asyncio.Task[Outcome]) -> None:
        self._ended = True
        self._changed.set()

    def offer_text(self, piece: str) -> None:
        """Pass on a piece of the answer. A reader that falls thousands of pieces behind ends the query."""
        if len(self._pieces) < _MOST_WAITING and not self._overrun:
            self._pieces.append(piece)
        else:
            self._overrun = True
            self.stop("slow_reader")
        self._changed.set()

    async def texts(self) -> AsyncIterator[str]:
        """Pieces of the answer's text until it ends; only for a handle that `streams_text`.

        Raises:
            QueryError: the reader was too slow, and pieces were dropped.
        """
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._overrun:
                raise QueryError("the stream was read too slowly", code="slow_reader", status=503)
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    async def result(self) -> Outcome:
        """Wait for the end. Leaving this wait does not end the query; `stop` does."""
        assert self._task is not None
        return await asyncio.shield(self._task)

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done()
