from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import time
from typing import Any

import pytest

from guards.budget import Budget
from guards.embedded import EmbeddedValkey
from guards.lease import LeaseKeeper
from guards.ledger import Ledger
from guards.ledger_types import Granted, Settled
from guards.store import StoreClient, StoreUnavailable, connect

T = "tenant"


class Meter:
    """Tokens a search has used; tells when it was read often enough."""

    def __init__(self, tokens: int = 0, signal_after: int = 0) -> None:
        self.tokens = tokens
        self.reads = 0
        self.read_enough = asyncio.Event()
        self._after = signal_after

    def __call__(self) -> int:
        self.reads += 1
        if self.reads >= self._after:
            self.read_enough.set()
        return self.tokens


async def reserved(client: StoreClient, lease_s: float) -> Ledger:
    ledger = Ledger(client)
    assert isinstance(await ledger.reserve(T, Budget(), "s", 100, lease_s), Granted)
    return ledger


async def month(ledger: Ledger) -> tuple[int, int]:
    usage = (await ledger.usage(T, Budget()))["month"]
    return usage.used, usage.reserved


def kill(server: EmbeddedValkey) -> None:
    assert server.pid is not None
    pidfd = os.pidfd_open(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 5)[0]
    os.close(pidfd)


async def test_a_search_outlives_its_first_lease_and_is_settled_on_leaving(client: StoreClient) -> None:
    ledger = await reserved(client, 0.3)
    meter = Meter(signal_after=5)
    async with LeaseKeeper(ledger, T, "s", meter, lease_s=0.3) as keeper:
        await asyncio.wait_for(meter.read_enough.wait(), 5)
        assert await ledger.in_flight(T) == 1
        assert not keeper.lost.is_set()
        meter.tokens = 42
    assert keeper.settled == Settled(42, already=False, over_reservation=False)
    assert await month(ledger) == (42, 0)


async def test_case_13_a_failed_search_is_charged_what_it_used(client: StoreClient) -> None:
    ledger = await reserved(client, 30)
    with pytest.raises(RuntimeError, match="engine"):
        async with LeaseKeeper(ledger, T, "s", lambda: 7, lease_s=30):
            raise RuntimeError("engine")
    assert await month(ledger) == (7, 0)


async def test_case_13_a_cancelled_search_is_charged_before_the_cancellation_goes_on(
    client: StoreClient,
) -> None:
    ledger = await reserved(client, 30)
    inside = asyncio.Event()
    meter = Meter(7)

    async def search() -> None:
        async with LeaseKeeper(ledger, T, "s", meter, lease_s=30):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(search())
    await inside.wait()
    task.cancel()
    await meter.read_enough.wait()  # it is settling
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await month(ledger) == (7, 0)


async def test_a_hold_that_is_gone_is_reported_while_the_search_runs(client: StoreClient) -> None:
    ledger = await reserved(client, 0.1)
    async with LeaseKeeper(ledger, T, "s", lambda: 7, lease_s=0.1) as keeper:
        await client.flushall()
        await asyncio.wait_for(keeper.lost.wait(), 5)
    assert keeper.settled == Settled(7, already=False, over_reservation=True)


async def test_a_hold_that_cannot_be_renewed_is_lost_when_its_lease_ends(own_server: EmbeddedValkey) -> None:
    client = connect(own_server.url)
    ledger = await reserved(client, 0.3)
    async with LeaseKeeper(ledger, T, "s", lambda: 7, lease_s=0.3) as keeper:
        kill(own_server)
        started = asyncio.get_running_loop().time()
        await asyncio.wait_for(keeper.lost.wait(), 5)
        assert asyncio.get_running_loop().time() - started < 1
        own_server.start()
    assert keeper.settled is not None
    assert keeper.settled.charged == 7
    await client.aclose()


async def test_a_store_that_is_away_briefly_is_settled_with_when_it_is_back(
    own_server: EmbeddedValkey,
) -> None:
    client = connect(own_server.url)
    ledger = await reserved(client, 30)
    with pytest.raises(RuntimeError):
        async with LeaseKeeper(ledger, T, "s", lambda: 7, lease_s=30, settle_pauses_s=[0.3, 1, 1]) as keeper:
            kill(own_server)
            restart = asyncio.create_task(asyncio.to_thread(own_server.start))
            raise RuntimeError
    await restart
    assert keeper.settled == Settled(7, already=False, over_reservation=False)
    assert await month(ledger) == (7, 0)
    await client.aclose()


async def test_a_store_that_stays_away_is_logged_and_the_lease_charges_the_progress(
    own_server: EmbeddedValkey, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(own_server.url)
    ledger = await reserved(client, 0.3)
    meter = Meter(5, signal_after=2)
    async with LeaseKeeper(ledger, T, "s", meter, lease_s=0.3, settle_pauses_s=[0.01]) as keeper:
        await asyncio.wait_for(meter.read_enough.wait(), 5)  # so the first renewal has arrived
        meter.tokens = 9
        kill(own_server)
    assert keeper.settled is None
    assert [r.message for r in caplog.records if r.levelno == logging.ERROR and "settled" in r.message] == [
        "search s was not settled; it used 9 tokens"
    ]
    with pytest.raises(StoreUnavailable):
        await month(ledger)
    own_server.start()
    later = Ledger(client, clock=lambda: int(time.time() * 1000) + 1000)
    assert await month(later) == (5, 0)
    await client.aclose()


async def test_a_broken_meter_is_not_passed_over(client: StoreClient) -> None:
    ledger = await reserved(client, 30)

    def broken() -> int:
        raise RuntimeError("meter")

    with pytest.raises(RuntimeError, match="meter"):
        async with LeaseKeeper(ledger, T, "s", broken, lease_s=30):
            pass


async def test_a_renewal_that_swallows_its_cancellation_does_not_keep_the_hold(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's `wait_for` returns a result that is ready instead of the cancellation."""
    await ledger.reserve("acme", Budget(), "s1", 100, 0.3)
    renewing = asyncio.Event()
    renew = ledger.renew

    async def swallows(*args: Any) -> bool:
        renewing.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        return await renew(*args)

    monkeypatch.setattr(ledger, "renew", swallows)
    async with asyncio.timeout(5), LeaseKeeper(ledger, "acme", "s1", lambda: 7, lease_s=0.3) as keeper:
        await renewing.wait()
    assert keeper.settled is not None
    assert keeper.settled.charged == 7
    assert await ledger.in_flight("acme") == 0
