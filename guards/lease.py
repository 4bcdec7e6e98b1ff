"""Keeps the ledger hold of a running search alive and settles it in the end, whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType

from guards.ledger import Ledger
from guards.ledger_types import Settled
from guards.store import StoreUnavailable

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Async context manager around the work of a search whose reservation was just granted.

    Inside, the lease is renewed every third of its length. On leaving, by return, error or cancellation,
    the search is settled; cancellation waits for that. Stop the search's engine calls before leaving, so
    that `used()` is final. When the store stays away through all attempts the failure is logged, and the
    lease runs out and is charged the last progress reported.

    Args:
        ledger: where the hold is.
        tenant_id, search_id: whose hold.
        used: tokens the search has used until now; called on each renewal and last on leaving.
        lease_s: length of the lease in seconds, as given to `reserve`.
        settle_pauses_s: pauses before the 2nd, 3rd, … attempt to settle, in seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        tenant_id: str,
        search_id: str,
        used: Callable[[], int],
        *,
        lease_s: float,
        settle_pauses_s: Sequence[float] = (0.1, 0.5, 2.0),
    ) -> None:
        self._ledger = ledger
        self._tenant_id = tenant_id
        self._search_id = search_id
        self._used = used
        self._lease_s = lease_s
        self._pauses_s = tuple(settle_pauses_s)
        self._renewer: asyncio.Task[None] | None = None
        self._leaving = False
        self.lost = asyncio.Event()
        """Set when the hold is gone: from here on the tokens are no longer set aside. Stop the search."""
        self.settled: Settled | None = None
        """What was charged, after leaving; None if the store stayed away."""

    async def __aenter__(self) -> LeaseKeeper:
        self._renewer = asyncio.create_task(self._renew(), name=f"lease of {self._search_id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish = asyncio.create_task(self._finish(), name=f"settle {self._search_id}")
        cancelled: asyncio.CancelledError | None = None
        while not finish.done():
            try:
                await asyncio.shield(finish)
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled
        finish.result()

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        lease_end = loop.time() + self._lease_s
        # The flag, since a cancellation can be swallowed: `asyncio.wait_for`, which redis-py uses, does so in
        # Python 3.11 when what it waits for is done in that moment.
        while not self._leaving:
            await asyncio.sleep(self._lease_s / 3)
            asked = loop.time()
            try:
                held = await self._ledger.renew(self._tenant_id, self._search_id, self._used(), self._lease_s)
            except StoreUnavailable as exc:
                log.warning("cannot renew the lease of search %s: %s", self._search_id, exc)
                held = loop.time() < lease_end
            else:
                lease_end = asked + self._lease_s
            if not held:
                log.warning("the hold of search %s is gone", self._search_id)
                self.lost.set()
                return

    async def _finish(self) -> None:
        self._leaving = True
        if self._renewer is not None:
            self._renewer.cancel()
            (outcome,) = await asyncio.gather(self._renewer, return_exceptions=True)
            if isinstance(outcome, Exception):
                log.error("renewing the lease of search %s failed", self._search_id, exc_info=outcome)
        used = self._used()
        for pause_s in (0.0, *self._pauses_s):
            await asyncio.sleep(pause_s)
            try:
                self.settled = await self._ledger.settle(self._tenant_id, self._search_id, used)
            except StoreUnavailable as exc:
                log.warning("cannot settle search %s: %s", self._search_id, exc)
            else:
                return
        log.error("search %s was not settled; it used %d tokens", self._search_id, used)
