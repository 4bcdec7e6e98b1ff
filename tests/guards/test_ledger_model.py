"""Random histories of the ledger against a model in Python, on the real store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from guards.budget import WINDOWS, Budget, Window
from guards.ledger import Ledger
from guards.ledger_types import Denied, Granted, SearchSettled
from guards.store import StoreClient, connect

T = "tenant"
MARKER_MS = 2 * 86_400_000


@dataclass
class Hold:
    tokens: int
    progress: int
    lease_end: int


@dataclass
class Marker:
    charged: int
    at: int
    swept: bool
    forget: int


class Model:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000
        self.used: dict[Window, int] = dict.fromkeys(WINDOWS, 0)
        self.starts = self._starts()
        self.holds: dict[str, Hold] = {}
        self.markers: dict[str, Marker] = {}

    def _starts(self) -> dict[Window, int]:
        now = datetime.fromtimestamp(self.now // 1000, UTC)
        midnight = now.replace(hour=0, minute=0, second=0)
        starts = (now.replace(second=0), midnight, midnight.replace(day=1))
        return {w: int(start.timestamp()) * 1000 for w, start in zip(WINDOWS, starts, strict=True)}

    def charge(self, at: int, n: int) -> None:
        for window in WINDOWS:
            if at >= self.starts[window]:
                self.used[window] += n

    def sweep(self) -> None:
        """What every call does first."""
        for window, start in self._starts().items():
            if start != self.starts[window]:
                self.used[window] = 0
        self.starts = self._starts()
        for search, hold in list(self.holds.items()):
            if hold.lease_end <= self.now:
                del self.holds[search]
                self.charge(hold.lease_end, hold.progress)
                self.markers[search] = Marker(hold.progress, hold.lease_end, True, self.now + MARKER_MS)
        self.markers = {s: m for s, m in self.markers.items() if m.forget > self.now}

    @property
    def reserved(self) -> int:
        return sum(hold.tokens for hold in self.holds.values())

    def fits(self, tokens: int, budget: Budget) -> bool:
        limits = [(self.used[w], budget.limit(w)) for w in WINDOWS]
        return all(limit is None or used + self.reserved + tokens <= limit for used, limit in limits)

    def settle(self, search: str, used: int) -> tuple[int, bool]:
        marker = self.markers.get(search)
        if search in self.holds:
            del self.holds[search]
            self.charge(self.now, used)
        elif marker is None:
            self.charge(self.now, used)
        elif not marker.swept:
            return marker.charged, True
        else:
            delta = used - marker.charged
            self.charge(self.now if delta >= 0 else marker.at, delta)
        self.markers[search] = Marker(used, self.now, False, self.now + MARKER_MS)
        return used, False


class LedgerMachine(RuleBasedStateMachine):
    searches: Bundle[str] = Bundle("searches")

    def __init__(self, runner: asyncio.Runner, client: StoreClient) -> None:
        super().__init__()
        self.runner, self.client = runner, client
        self.model = Model()
        self.ledger = Ledger(client, clock=lambda: self.model.now)
        self.count = 0
        self.look = True
        self.final: dict[str, int] = {}
        self.month = self.model.starts["month"]
        runner.run(client.flushall())  # type: ignore[arg-type]

    @initialize(
        minute=st.none() | st.integers(1, 300),
        day=st.none() | st.integers(1, 1000),
        month=st.none() | st.integers(1, 2000),
    )
    def limits(self, minute: int | None, day: int | None, month: int | None) -> None:
        self.budget = Budget(minute, day, month)

    @rule(target=searches, tokens=st.integers(1, 150), lease_s=st.sampled_from([1.0, 30.0, 600.0]))
    def reserve(self, tokens: int, lease_s: float) -> str | MultipleResults[str]:
        return self._reserve(tokens, lease_s)

    @rule(target=searches, more=st.sampled_from([0, 1]), lease_s=st.sampled_from([1.0, 600.0]))
    def reserve_what_is_left(self, more: int, lease_s: float) -> str | MultipleResults[str]:
        self.model.sweep()
        limits = [(limit, self.model.used[w]) for w in WINDOWS if (limit := self.budget.limit(w)) is not None]
        left = min((limit - used for limit, used in limits), default=100) - self.model.reserved
        return self._reserve(max(1, left + more), lease_s)

    def _reserve(self, tokens: int, lease_s: float) -> str | MultipleResults[str]:
        self.count += 1
        search = f"s{self.count}"
        decision = self.runner.run(self.ledger.reserve(T, self.budget, search, tokens, lease_s))
        self.model.sweep()
        if isinstance(decision, Denied):
            assert not self.model.fits(tokens, self.budget)
            return multiple()
        assert self.model.fits(tokens, self.budget)
        self.model.holds[search] = Hold(tokens, 0, self.model.now + int(lease_s * 1000))
        return search

    @rule(search=searches)
    def reserve_again(self, search: str) -> None:
        try:
            decision = self.runner.run(self.ledger.reserve(T, self.budget, search, 1, 1.0))
        except SearchSettled:
            self.model.sweep()
            assert search in self.model.markers
            return
        self.model.sweep()
        hold = self.model.holds.get(search)
        if hold is not None:
            assert isinstance(decision, Granted)
            assert decision.tokens == hold.tokens
            hold.lease_end = max(hold.lease_end, self.model.now + 1000)
        elif isinstance(decision, Granted):  # settled so long ago that it is forgotten
            assert search not in self.model.markers
            self.model.holds[search] = Hold(1, 0, self.model.now + 1000)

    @rule(search=searches, progress=st.integers(0, 200), lease_s=st.sampled_from([1.0, 30.0]))
    def renew(self, search: str, progress: int, lease_s: float) -> None:
        renewed = self.runner.run(self.ledger.renew(T, search, progress, lease_s))
        self.model.sweep()
        hold = self.model.holds.get(search)
        assert renewed == (hold is not None)
        if hold is not None:
            hold.progress = max(hold.progress, progress)
            hold.lease_end = max(hold.lease_end, self.model.now + int(lease_s * 1000))

    @rule(search=searches, used=st.integers(0, 200))
    def settle(self, search: str, used: int) -> None:
        settled = self.runner.run(self.ledger.settle(T, search, used))
        self.model.sweep()
        assert (settled.charged, settled.already) == self.model.settle(search, used)
        self.final[search] = settled.charged

    @rule(search=consumes(searches), used=st.integers(0, 200), times=st.integers(2, 5))
    def settle_many_times_at_once(self, search: str, used: int, times: int) -> None:
        async def all_at_once() -> list[bool]:
            settled = await asyncio.gather(*(self.ledger.settle(T, search, used) for _ in range(times)))
            return [one.already for one in settled]

        already = self.runner.run(all_at_once())
        self.model.sweep()
        self.final[search], before = self.model.settle(search, used)
        assert sum(not one for one in already) == (0 if before else 1)

    @rule(seconds=st.sampled_from([0.5, 1, 29, 31, 60, 700, 4000, 90_000, 200_000, 2_700_000]))
    def time_passes(self, seconds: float) -> None:
        self.model.now += int(seconds * 1000)
        self.look = False  # so that the next call is the one that sweeps

    @invariant()
    def accounts_agree(self) -> None:
        if not self.look:
            self.look = True
            return
        usage = self.runner.run(self.ledger.usage(T, Budget()))
        in_flight = self.runner.run(self.ledger.in_flight(T))
        self.model.sweep()
        assert {w: usage[w].used for w in WINDOWS} == self.model.used
        assert {usage[w].reserved for w in WINDOWS} == {self.model.reserved}
        assert in_flight == len(self.model.holds)

    def teardown(self) -> None:
        for search in list(self.model.holds):
            self.settle(search, 1)
        usage = self.runner.run(self.ledger.usage(T, Budget()))
        assert usage["month"].reserved == 0
        assert self.runner.run(self.ledger.in_flight(T)) == 0
        keys: list[str] = self.runner.run(self.client.keys("*"))  # type: ignore[arg-type]
        assert not [key for key in keys if key.endswith((":leases", ":holds"))]
        never_settled = sum(m.charged for s, m in self.model.markers.items() if s not in self.final)
        if self.model.starts["month"] == self.month and self.model.now < 1_800_000_000_000 + MARKER_MS:
            assert usage["month"].used == sum(self.final.values()) + never_settled


@pytest.mark.timeout(60)
def test_random_histories_agree_with_the_model(store_url: str) -> None:
    with asyncio.Runner() as runner:
        client = connect(store_url)
        run_state_machine_as_test(
            lambda: LedgerMachine(runner, client),  # type: ignore[arg-type]
            settings=settings(
                max_examples=60,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        runner.run(client.aclose())
