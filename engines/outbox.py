"""Reports waiting for one client, handed over in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engines.protocol import Chunk
from engines.wire import Report

PAUSE_S = 0.02
URGENT_PAUSE_S = 0.004


class Outbox:
    """Gathers reports so that a stream of many calls costs few messages.

    First chunks and ends go out at once, but `URGENT_PAUSE_S` after the message before; what lies between
    waits until `PAUSE_S` after it. Its size is bounded by the tokens its client's calls may still generate.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: list[Report] = []
        self._started: set[int] = set()
        self._arrived = asyncio.Event()
        self._urgent = asyncio.Event()
        self._sent_at = -PAUSE_S
        self.closed = False

    def close(self) -> None:
        """End `take` at once; what was not taken is dropped."""
        self.closed = True
        self._reports.clear()
        self._arrived.set()
        self._urgent.set()

    def put(self, report: Report) -> None:
        number, what = report
        middle = isinstance(what, Chunk) and what.finish is None and number in self._started
        if isinstance(what, Chunk) and what.finish is None:
            self._started.add(number)
        else:
            self._started.discard(number)
        self._reports.append(report)
        self._arrived.set()
        if not middle:
            self._urgent.set()

    async def take(self) -> list[Report]:
        """All reports so far, as soon as it is time to send some; none when closed."""
        await self._arrived.wait()
        if not self._urgent.is_set():
            await _wait_for(self._urgent, self._sent_at + PAUSE_S - self._clock())
        # Calls of one engine step report one after the other in one turn of the event loop.
        await asyncio.sleep(max(0.0, self._sent_at + URGENT_PAUSE_S - self._clock()))
        reports, self._reports = self._reports, []
        self._arrived.clear()
        self._urgent.clear()
        self._sent_at = self._clock()
        return reports


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
