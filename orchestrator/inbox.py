"""Where the answers of engines and verifiers wait for the one loop that takes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

from orchestrator.dispatch import Arrival


class Inbox:
    """Arrivals in their order. Bounded by the token cap: each carries a token or ends a call."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[int, Arrival]] = deque()
        self._wake = asyncio.Event()

    def put(self, call: int, what: Arrival) -> None:
        self._arrived.append((call, what))
        self._wake.set()

    def wake(self) -> None:
        """End a wait although nothing has arrived."""
        self._wake.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait until something has arrived, `wake` was called since the last wait, or the time is over."""
        if not self._arrived:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()

    def take(self) -> Iterator[tuple[int, Arrival]]:
        """All that has arrived, also what arrives meanwhile."""
        while self._arrived:
            yield self._arrived.popleft()
