"""What the running searches of one model hold of its engines, and whose turn it is when that is all.

A search that has no call running holds nothing: it lets go of its KV and waits in line. While anybody waits,
only the head of the line may take what is free, so that what others hold comes back as their calls end, and
the line moves. Held room thus always belongs to running calls, and no search can wait for one that waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Gauge:
    """Call slots and KV tokens of one model, shared by the searches of this process.

    Args:
        slots: calls that may run at once, over all replicas.
        kv_tokens: KV-cache capacity in tokens, over all replicas.
    """

    def __init__(self, slots: int, kv_tokens: int) -> None:
        self.slots = slots
        self.kv_tokens = kv_tokens
        self._held: dict[str, tuple[int, int]] = {}
        self._calls = 0
        self._kv = 0
        self._line: OrderedDict[str, asyncio.Event] = OrderedDict()

    @property
    def searches(self) -> int:
        """Searches that hold something or wait."""
        return len(self._held.keys() | self._line.keys())

    @property
    def calls(self) -> int:
        """Calls running."""
        return self._calls

    def free(self, search_id: str) -> tuple[int, int]:
        """Call slots and KV tokens that this search may take beyond what it holds; none while others wait."""
        if self._line and next(iter(self._line)) != search_id:
            return 0, 0
        return max(0, self.slots - self._calls), max(0, self.kv_tokens - self._kv)

    def alone(self, search_id: str) -> bool:
        """Whether no other search holds anything and none is ahead in line: what is free is all there is."""
        others = self._held.keys() - {search_id}
        return not others and (not self._line or next(iter(self._line)) == search_id)

    def hold(self, search_id: str, calls: int, kv_tokens: int) -> None:
        """Set what a search holds now: running calls, and live KV tokens with running calls at their worst.

        A search that starts calls has had its turn and leaves the line.
        """
        before = self._held.pop(search_id, (0, 0))
        if calls or kv_tokens:
            self._held[search_id] = (calls, kv_tokens)
        self._calls += calls - before[0]
        self._kv += kv_tokens - before[1]
        had_its_turn = bool(calls) and self._line.pop(search_id, None) is not None
        if had_its_turn or calls < before[0] or kv_tokens < before[1]:
            self._wake_head()

    def release(self, search_id: str) -> None:
        """The search has ended: it holds nothing and waits no more."""
        self.hold(search_id, 0, 0)
        if self._line.pop(search_id, None) is not None:
            self._wake_head()

    async def wait(self, search_id: str, timeout_s: float | None) -> None:
        """Wait in line until it is this search's turn and more has become free, or the time is over.

        Its place in line stays until it starts calls or ends.
        """
        event = self._line.setdefault(search_id, asyncio.Event())
        event.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def nudge(self, search_id: str) -> None:
        """End this search's wait now, whatever is free."""
        if search_id in self._line:
            self._line[search_id].set()

    def _wake_head(self) -> None:
        if self._line:
            next(iter(self._line.values())).set()
