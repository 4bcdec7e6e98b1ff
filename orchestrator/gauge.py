"""What the running searches of one model hold of its engines: call slots and KV tokens."""

from __future__ import annotations

import asyncio


class Gauge:
    """Shared by the searches of one model in this process; keeps each from asking beyond what is free.

    Args:
        slots: calls that may run at once, over all replicas.
        kv_tokens: KV-cache capacity in tokens, over all replicas.
    """

    def __init__(self, slots: int, kv_tokens: int) -> None:
        self.slots = slots
        self.kv_tokens = kv_tokens
        self._held: dict[str, tuple[int, int]] = {}
        self._changed = asyncio.Event()

    def hold(self, search_id: str, calls: int, kv_tokens: int) -> None:
        """Set what a search holds: running calls, and live KV tokens with running calls at their worst."""
        self._held[search_id] = (calls, kv_tokens)
        self._changed.set()

    def release(self, search_id: str) -> None:
        self._held.pop(search_id, None)
        self._changed.set()

    def free(self) -> tuple[int, int]:
        """Free call slots and KV tokens."""
        calls = sum(c for c, _ in self._held.values())
        kv = sum(k for _, k in self._held.values())
        return max(0, self.slots - calls), max(0, self.kv_tokens - kv)

    @property
    def searches(self) -> int:
        return len(self._held)

    @property
    def calls(self) -> int:
        return sum(c for c, _ in self._held.values())

    async def changed(self, timeout_s: float) -> None:
        """Wait until any search's holding changed, or the time is over."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return
