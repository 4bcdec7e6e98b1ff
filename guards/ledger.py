"""The token ledger: reserve before spending, renew while running, settle by what was really used.

Each decision is one Lua script over keys of one hash slot, so it is atomic, and it reads the store's own
clock, so the clocks of the processes that call it do not matter. Windows are fixed calendar windows, UTC.
Admission keeps `used + reserved + tokens <= limit` in every window.

A holder that dies leaves a lease that runs out. Every script sweeps such holds and charges what the holder
last reported by `renew`: those tokens were spent for certain. Charging nothing would make crashing free;
charging the whole reservation would take tokens that were perhaps never generated. A settle that comes
after all corrects the charge to the real figure, once.

When the store cannot be reached every method raises `StoreUnavailable`: the ledger fails closed and never
counts locally, since N processes with local counts would admit N budgets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from guards.budget import MAX_TOKENS, WINDOWS, Budget, Window
from guards.ledger_types import Decision, Denied, Granted, SearchSettled, Settled, WindowUsage
from guards.scripts import load_script
from guards.store import StoreClient, StoreUnavailable

_TENANT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SEARCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_KEYS = ("leases", "holds", "windows", "markers", "charges")
_SWEEP_BATCH = 200  # as in common.lua
_MAX_LEASE_S: Final = 3600.0


class Ledger:
    """Token accounts of all tenants, shared by every process that uses the same store.

    Args:
        client: the store.
        max_holds: most searches in flight per tenant.
        clock: milliseconds since the epoch, for tests. None, as always in production: the store's clock.
    """

    def __init__(
        self, client: StoreClient, *, max_holds: int = 10_000, clock: Callable[[], int] | None = None
    ) -> None:
        if max_holds < 1:
            raise ValueError("max_holds must be at least 1")
        self._max_holds = max_holds
        self._clock = clock
        self._reserve = client.register_script(load_script("common", "reserve"))
        # These free memory or keep a promise already made, so a full store must not stop them.
        self._renew = client.register_script(load_script("common", "renew", flags="allow-oom"))
        self._settle = client.register_script(load_script("common", "settle", flags="allow-oom"))
        self._usage = client.register_script(load_script("common", "usage", flags="allow-oom"))

    async def reserve(
        self, tenant_id: str, budget: Budget, search_id: str, tokens: int, lease_s: float
    ) -> Decision:
        """Set `tokens` aside for a search, in all windows or in none.

        Repeating it for a search that holds a reservation extends the lease and returns the same grant.

        Args:
            tenant_id: whose budget.
            budget: the limits that hold now; None in a window is no limit.
            search_id: unique per search (1..128 of letters, digits and `._:-`); never reused.
            tokens: worst case of the search, 1..10**15.
            lease_s: seconds until the hold is taken for dead unless renewed, 0.001..3600.

        Raises:
            SearchSettled: this search id was settled or swept before.
            StoreUnavailable: the store does not answer.
            ValueError: an argument is out of range.
        """
        _check_tokens(tokens, least=1)
        limits = ["" if (limit := budget.limit(w)) is None else limit for w in WINDOWS]
        args = [_checked(search_id), tokens, _lease_ms(lease_s), self._max_holds, *limits]
        reply = await self._decide(self._reserve, tenant_id, args)
        if reply[0] == "settled":
            raise SearchSettled(f"search {search_id} was settled before")
        if reply[0] == "granted":
            left = {w: None if n < 0 else n for w, n in zip(WINDOWS, reply[2:], strict=True)}
            return Granted(search_id, reply[1], left)
        _, window, limit, used, reserved, retry_after_s, why = reply
        return Denied(
            window=window,
            limit=limit,
            used=used,
            reserved=reserved,
            retry_after_s=retry_after_s if why == "full" else None,
            suspended=why == "suspended",
            never=why == "never",
        )

    async def renew(self, tenant_id: str, search_id: str, used_so_far: int, lease_s: float) -> bool:
        """Extend the lease of a running search and record its progress; False if the hold is gone.

        Raises:
            StoreUnavailable: the store does not answer.
            ValueError: an argument is out of range.
        """
        _check_tokens(used_so_far)
        args = [_checked(search_id), used_so_far, _lease_ms(lease_s)]
        reply = await self._decide(self._renew, tenant_id, args)
        return bool(reply[0] == "renewed")

    async def settle(self, tenant_id: str, search_id: str, used: int) -> Settled:
        """Charge what a search really used to the windows of now and free its hold.

        Safe to repeat: only the first call for a search id charges (remembered for two days, or for the
        last 100 000 searches of the tenant). All that was used is charged, also beyond the reservation,
        and also when the store knows of none (it lost it): the tokens are real.

        Raises:
            StoreUnavailable: the store does not answer; call again.
            ValueError: an argument is out of range.
        """
        _check_tokens(used)
        _, charged, already, over = await self._decide(self._settle, tenant_id, [_checked(search_id), used])
        return Settled(charged, already=bool(already), over_reservation=bool(over))

    async def in_flight(self, tenant_id: str) -> int:
        """How many searches of the tenant hold a living lease.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        reply = await self._decide(self._usage, tenant_id, [])
        return int(reply[1])

    async def usage(self, tenant_id: str, budget: Budget) -> Mapping[Window, WindowUsage]:
        """Tokens used and reserved in each window of now.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        reply = await self._decide(self._usage, tenant_id, [])
        return {
            window: WindowUsage(
                used=reply[3 + 2 * i],
                reserved=reply[2],
                limit=budget.limit(window),
                reset_s=reply[4 + 2 * i],
            )
            for i, window in enumerate(WINDOWS)
        }

    async def _decide(self, script: Any, tenant_id: str, args: list[Any]) -> list[Any]:
        if _TENANT_ID.fullmatch(tenant_id) is None:
            raise ValueError("malformed tenant id")
        keys = [f"pondera:{{{tenant_id}}}:{name}" for name in _KEYS]
        now = "" if self._clock is None else self._clock()
        # A call sweeps one batch of dead holds. When more are left, deciding would refuse for the dead.
        for _ in range(self._max_holds // _SWEEP_BATCH + 2):
            reply: list[Any] = await script(keys=keys, args=[now, *args])
            if reply[0] != "again":
                return reply
        raise StoreUnavailable("dead holds appear faster than they can be swept")


def _checked(search_id: str) -> str:
    if _SEARCH_ID.fullmatch(search_id) is None:
        raise ValueError("malformed search id")
    return search_id


def _check_tokens(tokens: int, least: int = 0) -> None:
    if not least <= tokens <= MAX_TOKENS:
        raise ValueError(f"token counts must lie in {least}..{MAX_TOKENS}")


def _lease_ms(lease_s: float) -> int:
    if not 0.001 <= lease_s <= _MAX_LEASE_S:
        raise ValueError(f"a lease must lie in 0.001..{_MAX_LEASE_S} s")
    return int(lease_s * 1000)
