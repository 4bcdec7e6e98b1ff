from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from guards.budget import Budget
from guards.ledger import Ledger
from guards.ledger_types import Granted
from guards.store import StoreClient, connect
from guards.tenants import TenantStore

ROOT = Path(__file__).parents[2]
BUDGET = Budget(day=350)

# Reports ready, waits for the start, races, prints how many were admitted.
RACER = """
import asyncio, sys
from guards.budget import Budget
from guards.ledger import Ledger
from guards.ledger_types import Granted
from guards.store import connect

async def main(url, name):
    client = connect(url, timeout_s=20)
    ledger = Ledger(client)
    await client.rpush("ready", name)
    await client.blpop("go", timeout=15)
    decisions = await asyncio.gather(
        *(ledger.reserve("fresh", Budget(day=350), f"{name}-{i}", 100, 60) for i in range(20))
    )
    print(sum(isinstance(decision, Granted) for decision in decisions))
    await client.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


async def admitted(ledgers: list[Ledger], tenant_id: str, count: int) -> list[str]:
    decisions = await asyncio.gather(
        *(ledgers[i % len(ledgers)].reserve(tenant_id, BUDGET, f"s{i}", 100, 60.0) for i in range(count))
    )
    return [decision.search_id for decision in decisions if isinstance(decision, Granted)]


async def test_case_01_of_20_concurrent_requests_the_3_that_the_budget_covers_are_admitted(
    client: StoreClient,
) -> None:
    tenant, _ = await TenantStore(client).add("acme", BUDGET)
    ledger = Ledger(client)
    searches = await admitted([ledger], tenant.id, 20)
    assert len(searches) == 3
    settled = await asyncio.gather(*(ledger.settle(tenant.id, search, 100) for search in searches))
    assert sum(one.charged for one in settled) == 300
    assert (await ledger.usage(tenant.id, BUDGET))["day"].used == 300


@pytest.mark.parametrize("count", [8, 20])
async def test_case_02_a_never_seen_tenant_has_no_free_first_wave(
    client: StoreClient, store_url: str, count: int
) -> None:
    other = connect(store_url)
    assert len(await admitted([Ledger(client), Ledger(other)], "never-seen", count)) == 3
    await other.aclose()


async def test_case_02_nor_has_it_one_from_two_processes(client: StoreClient, store_url: str) -> None:
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", RACER, store_url, name, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        for name in ("left", "right")
    ]
    waiting = connect(store_url, timeout_s=20)
    for _ in racers:
        assert await waiting.blpop(["ready"], timeout=15) is not None
    await client.rpush("go", "1", "2")
    outputs = await asyncio.gather(*(racer.communicate() for racer in racers))
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sum(int(out) for out, _ in outputs) == 3
    await waiting.aclose()


async def test_concurrent_settles_of_one_search_charge_once(client: StoreClient) -> None:
    ledger = Ledger(client)
    await ledger.reserve("t", Budget(), "s", 100, 60.0)
    settled = await asyncio.gather(*(ledger.settle("t", "s", 70) for _ in range(20)))
    assert sum(not one.already for one in settled) == 1
    assert {one.charged for one in settled} == {70}
    assert (await ledger.usage("t", Budget()))["day"].used == 70
