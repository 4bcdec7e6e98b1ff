from __future__ import annotations

import asyncio
import calendar
import os
import select
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guards.budget import WINDOWS, Budget
from guards.embedded import EmbeddedValkey
from guards.ledger import Ledger
from guards.ledger_types import Denied, Granted, SearchSettled, Settled
from guards.store import StoreClient, StoreUnavailable, connect

T = "tenant"
LEASE_S = 30.0


async def grant(ledger: Ledger, search: str, tokens: int, budget: Budget | None = None) -> Granted:
    decision = await ledger.reserve(T, budget or Budget(), search, tokens, LEASE_S)
    assert isinstance(decision, Granted)
    return decision


async def refuse(ledger: Ledger, search: str, tokens: int, budget: Budget) -> Denied:
    decision = await ledger.reserve(T, budget, search, tokens, LEASE_S)
    assert isinstance(decision, Denied)
    return decision


async def totals(ledger: Ledger) -> tuple[int, int, int]:
    """Tokens used this month, tokens reserved, searches in flight."""
    month = (await ledger.usage(T, Budget()))["month"]
    return month.used, month.reserved, await ledger.in_flight(T)


async def test_a_search_reserves_renews_and_is_charged_what_it_used(ledger: Ledger) -> None:
    budget = Budget(minute=100, day=1000)
    granted = await grant(ledger, "s", 60, budget)
    assert granted == Granted("s", 60, {"minute": 40, "day": 940, "month": None})
    assert await ledger.renew(T, "s", 20, LEASE_S)
    assert await totals(ledger) == (0, 60, 1)
    assert await ledger.settle(T, "s", 45) == Settled(45, already=False, over_reservation=False)
    usage = await ledger.usage(T, budget)
    assert [(usage[w].used, usage[w].reserved, usage[w].limit) for w in WINDOWS] == [
        (45, 0, 100),
        (45, 0, 1000),
        (45, 0, None),
    ]
    assert await ledger.in_flight(T) == 0


async def test_a_reservation_is_all_or_nothing_over_the_windows(ledger: Ledger) -> None:
    budget = Budget(minute=100, day=150)
    await grant(ledger, "a", 100, budget)
    denied = await refuse(ledger, "b", 60, budget)
    assert (denied.window, denied.limit, denied.used, denied.reserved) == ("minute", 100, 0, 100)
    assert await totals(ledger) == (0, 100, 1)


async def test_the_window_with_the_longest_wait_is_reported(ledger: Ledger) -> None:
    budget = Budget(minute=100, month=100)
    await grant(ledger, "a", 100, budget)
    await ledger.settle(T, "a", 100)
    denied = await refuse(ledger, "b", 1, budget)
    assert denied.window == "month"
    usage = await ledger.usage(T, budget)
    assert denied.retry_after_s == usage["month"].reset_s > 60


async def test_holds_that_block_are_waited_for_no_longer_than_their_lease(ledger: Ledger) -> None:
    budget = Budget(month=100)
    await grant(ledger, "a", 100, budget)
    assert (await refuse(ledger, "b", 1, budget)).retry_after_s == LEASE_S


async def test_what_is_larger_than_a_limit_can_never_pass_and_others_still_do(ledger: Ledger) -> None:
    budget = Budget(minute=100)
    denied = await refuse(ledger, "case-11", 999_999_999, budget)
    assert denied.never and denied.retry_after_s is None and not denied.suspended
    await grant(ledger, "b", 100, budget)


async def test_case_04_a_tenant_without_a_budget_is_never_over_it(ledger: Ledger) -> None:
    for i in range(3):
        granted = await grant(ledger, f"s{i}", 10**15)
        assert set(granted.remaining.values()) == {None}
        await ledger.settle(T, f"s{i}", 10**15)
    assert await totals(ledger) == (3 * 10**15, 0, 0)


async def test_case_09_what_remains_is_never_negative(ledger: Ledger) -> None:
    budget = Budget(minute=1000)
    await grant(ledger, "a", 500, budget)
    await grant(ledger, "b", 10, budget)
    assert (await ledger.settle(T, "a", 1200)).over_reservation
    again = await ledger.reserve(T, budget, "b", 10, LEASE_S)
    assert isinstance(again, Granted)
    assert again.remaining["minute"] == 0
    assert (await refuse(ledger, "c", 1, budget)).used == 1200


async def test_case_12_absent_and_zero_limits_are_told_apart(ledger: Ledger) -> None:
    await grant(ledger, "a", 10, Budget())
    denied = await refuse(ledger, "b", 10, Budget(day=0))
    assert denied.suspended and not denied.never and denied.retry_after_s is None
    assert denied.window == "day"
    assert not (await refuse(ledger, "c", 10, Budget(day=5))).suspended


async def test_repeating_a_reservation_gives_the_same_grant_and_a_longer_lease(
    ledger: Ledger, clock: Any
) -> None:
    budget = Budget(minute=100)
    first = await grant(ledger, "a", 60, budget)
    clock.advance(LEASE_S - 1)
    assert await grant(ledger, "a", 99, budget) == first
    clock.advance(LEASE_S - 1)
    assert await totals(ledger) == (0, 60, 1)


async def test_a_settled_search_cannot_reserve_again(ledger: Ledger) -> None:
    await grant(ledger, "a", 10)
    await ledger.settle(T, "a", 1)
    with pytest.raises(SearchSettled):
        await ledger.reserve(T, Budget(), "a", 10, LEASE_S)


async def test_settling_twice_charges_once(ledger: Ledger) -> None:
    await grant(ledger, "a", 10)
    await ledger.settle(T, "a", 7)
    assert await ledger.settle(T, "a", 9) == Settled(7, already=True, over_reservation=False)
    assert await totals(ledger) == (7, 0, 0)


async def test_settling_is_remembered_for_a_day(ledger: Ledger, clock: Any) -> None:
    await grant(ledger, "a", 10)
    await ledger.settle(T, "a", 7)
    clock.advance(86_400)
    assert (await ledger.settle(T, "a", 7)).already


async def test_the_memory_of_settled_searches_is_bounded(
    ledger: Ledger, client: StoreClient, clock: Any
) -> None:
    old = {f"old{i}": clock.ms + 1 + i for i in range(100_100)}
    await client.zadd(f"pondera:{{{T}}}:markers", old)
    await client.hset(f"pondera:{{{T}}}:charges", mapping=dict.fromkeys(old, "1:1:1:settled"))
    await grant(ledger, "a", 10)
    await ledger.settle(T, "a", 7)
    assert await client.zcard(f"pondera:{{{T}}}:markers") <= 100_000
    assert await client.hlen(f"pondera:{{{T}}}:charges") <= 100_000
    assert (await ledger.settle(T, "a", 7)).already


async def test_a_search_the_store_has_lost_is_charged_and_flagged(ledger: Ledger) -> None:
    assert await ledger.settle(T, "a", 7) == Settled(7, already=False, over_reservation=True)
    assert (await ledger.settle(T, "a", 7)).already
    assert await totals(ledger) == (7, 0, 0)


async def test_case_06_the_holds_of_100_dead_searches_run_out(ledger: Ledger, clock: Any) -> None:
    budget = Budget(day=1000)
    for i in range(100):
        await grant(ledger, f"s{i}", 10, budget)
    assert await ledger.in_flight(T) == 100
    await refuse(ledger, "next", 10, budget)
    clock.advance(LEASE_S)
    assert await ledger.in_flight(T) == 0
    await grant(ledger, "next", 1000, budget)


async def test_a_reservation_is_not_refused_for_more_dead_holds_than_one_sweep_takes(
    ledger: Ledger, clock: Any
) -> None:
    budget = Budget(day=1000)
    await asyncio.gather(*(grant(ledger, f"s{i}", 1, budget) for i in range(1000)))
    clock.advance(LEASE_S)
    await grant(ledger, "next", 1000, budget)


async def test_a_dead_search_pays_the_progress_it_reported(ledger: Ledger, clock: Any) -> None:
    await grant(ledger, "a", 100)
    await ledger.renew(T, "a", 30, LEASE_S)
    await ledger.renew(T, "a", 20, LEASE_S)  # overtaken by the one before
    clock.advance(LEASE_S)
    assert await totals(ledger) == (30, 0, 0)
    assert not await ledger.renew(T, "a", 40, LEASE_S)
    with pytest.raises(SearchSettled):
        await ledger.reserve(T, Budget(), "a", 100, LEASE_S)


@pytest.mark.parametrize("used", [70, 30, 10, 0])
async def test_a_settle_after_the_sweep_corrects_the_charge_once(
    ledger: Ledger, clock: Any, used: int
) -> None:
    await grant(ledger, "a", 100)
    await ledger.renew(T, "a", 30, LEASE_S)
    clock.advance(LEASE_S)
    assert await totals(ledger) == (30, 0, 0)
    assert await ledger.settle(T, "a", used) == Settled(used, already=False, over_reservation=False)
    assert await ledger.settle(T, "a", 50) == Settled(used, already=True, over_reservation=False)
    assert await totals(ledger) == (used, 0, 0)


async def test_a_dead_search_found_later_does_not_eat_a_new_window(ledger: Ledger, clock: Any) -> None:
    await grant(ledger, "a", 100)
    await ledger.renew(T, "a", 30, LEASE_S)
    clock.advance(2 * 86_400)
    usage = await ledger.usage(T, Budget())
    assert (usage["minute"].used, usage["day"].used) == (0, 0)
    await ledger.settle(T, "a", 10)
    usage = await ledger.usage(T, Budget())
    assert (usage["minute"].used, usage["day"].used, usage["month"].used) == (0, 0, 10)


async def test_used_tokens_go_with_their_window_and_holds_stay(ledger: Ledger, clock: Any) -> None:
    budget = Budget(minute=100)
    await grant(ledger, "a", 50, budget)
    await grant(ledger, "b", 50, budget)
    await ledger.settle(T, "a", 50)
    denied = await refuse(ledger, "c", 50, budget)
    assert denied.retry_after_s is not None
    await ledger.renew(T, "b", 0, 3600)
    clock.advance(denied.retry_after_s + 60)
    await grant(ledger, "c", 50, budget)
    usage = await ledger.usage(T, budget)
    assert (usage["minute"].used, usage["minute"].reserved) == (0, 100)


async def test_holds_in_flight_are_bounded(client: StoreClient, clock: Any) -> None:
    ledger = Ledger(client, max_holds=2, clock=clock)
    await grant(ledger, "a", 1)
    await grant(ledger, "b", 1)
    denied = await refuse(ledger, "c", 1, Budget())
    assert (denied.window, denied.limit, denied.reserved, denied.retry_after_s) == ("in_flight", 2, 2, 1)
    await ledger.settle(T, "a", 1)
    await grant(ledger, "c", 1)


async def test_tenants_do_not_touch_one_another(ledger: Ledger) -> None:
    await grant(ledger, "a", 100, Budget(minute=100))
    other = await ledger.reserve("other", Budget(minute=100), "a", 100, LEASE_S)
    assert isinstance(other, Granted)
    await ledger.settle("other", "a", 5)
    assert await totals(ledger) == (0, 100, 1)


async def test_all_keys_of_a_tenant_share_a_slot_and_expire(ledger: Ledger, client: StoreClient) -> None:
    await grant(ledger, "a", 100)
    await grant(ledger, "b", 100)
    await ledger.settle(T, "a", 5)
    names = [str(key) for key in await client.keys("*")]
    assert len(names) == 5
    for name in names:
        assert name.startswith(f"pondera:{{{T}}}:")
        assert 0 < await client.ttl(name) <= 32 * 86_400


async def test_without_a_given_clock_the_time_is_the_stores(client: StoreClient) -> None:
    ledger = Ledger(client)
    budget = Budget(minute=10**6)
    await grant(ledger, "a", 10, budget)
    seconds, _ = await client.time()
    reset_s = (await ledger.usage(T, budget))["minute"].reset_s
    assert (seconds + reset_s) % 60 in (59, 0, 1)
    decision = await ledger.reserve(T, budget, "brief", 10, 0.001)
    assert isinstance(decision, Granted)
    await asyncio.sleep(0.005)
    assert await ledger.in_flight(T) == 1


async def test_scripts_are_loaded_again_when_the_store_forgot_them(
    ledger: Ledger, client: StoreClient
) -> None:
    await grant(ledger, "a", 10)
    await client.script_flush()
    assert (await ledger.settle(T, "a", 5)).charged == 5


async def test_a_full_store_refuses_reservations_but_still_settles(
    ledger: Ledger, client: StoreClient
) -> None:
    await grant(ledger, "a", 10)
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable):
            await ledger.reserve(T, Budget(), "b", 10, LEASE_S)
        assert await ledger.renew(T, "a", 5, LEASE_S)
        assert (await ledger.settle(T, "a", 5)).charged == 5
        assert await totals(ledger) == (5, 0, 0)
    finally:
        await client.config_set("maxmemory", "256mb")


async def test_case_07_without_the_store_nobody_is_admitted_and_accounts_outlive_it(
    own_server: EmbeddedValkey,
) -> None:
    replicas = [Ledger(connect(own_server.url)) for _ in range(2)]
    budget = Budget(month=100)
    await grant(replicas[0], "a", 60, budget)
    assert own_server.pid is not None
    pidfd = os.pidfd_open(own_server.pid)
    os.kill(own_server.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 5)[0]
    os.close(pidfd)
    for i, ledger in enumerate(replicas):
        with pytest.raises(StoreUnavailable):
            await ledger.reserve(T, budget, f"down{i}", 10, LEASE_S)
        with pytest.raises(StoreUnavailable):
            await ledger.usage(T, budget)
    own_server.start()
    assert (await refuse(replicas[1], "b", 60, budget)).reserved == 60
    assert (await replicas[0].settle(T, "a", 50)).charged == 50
    await grant(replicas[1], "b", 50, budget)


@pytest.mark.parametrize(
    ("tenant", "search", "tokens", "lease_s"),
    [
        ("a}{b", "s", 1, 1.0),
        ("", "s", 1, 1.0),
        ("a" * 65, "s", 1, 1.0),
        ("a", "", 1, 1.0),
        ("a", "*", 1, 1.0),
        ("a", "s" * 129, 1, 1.0),
        ("a", "s\n", 1, 1.0),
        ("a", "s", 0, 1.0),
        ("a", "s", -1, 1.0),
        ("a", "s", 10**15 + 1, 1.0),
        ("a", "s", 1, 0.0),
        ("a", "s", 1, float("nan")),
        ("a", "s", 1, 10**6),
    ],
)
async def test_arguments_out_of_range_are_refused(
    ledger: Ledger, tenant: str, search: str, tokens: int, lease_s: float
) -> None:
    with pytest.raises(ValueError):
        await ledger.reserve(tenant, Budget(), search, tokens, lease_s)


def seconds_to_resets(ms: int) -> list[int]:
    now = datetime.fromtimestamp(ms / 1000, UTC)
    minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    month = midnight.replace(day=1) + timedelta(days=calendar.monthrange(now.year, now.month)[1])
    resets = [minute, midnight + timedelta(days=1), month]
    return [-(-(int(reset.timestamp()) * 1000 - ms) // 1000) for reset in resets]


def test_windows_are_the_calendars(store_url: str) -> None:
    with asyncio.Runner() as runner:
        client = connect(store_url)

        @settings(max_examples=300, deadline=None)
        @given(st.integers(0, 4_102_444_800_000 - 1))  # 1970 to 2100
        def check(ms: int) -> None:
            usage = runner.run(Ledger(client, clock=lambda: ms).usage(T, Budget()))
            assert [usage[window].reset_s for window in WINDOWS] == seconds_to_resets(ms)

        check()
        for year in (1999, 2000, 2023, 2024, 2099):
            for month in range(1, 13):
                first = int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000
                for ms in (first - 1, first, first + 1):
                    usage = runner.run(Ledger(client, clock=lambda ms=ms: ms).usage(T, Budget()))  # type: ignore[misc]
                    assert [usage[window].reset_s for window in WINDOWS] == seconds_to_resets(ms)
        runner.run(client.aclose())
