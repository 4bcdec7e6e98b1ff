from __future__ import annotations

import asyncio

from orchestrator.gauge import Gauge


async def test_who_waits_goes_before_who_runs_and_in_the_order_of_coming() -> None:
    gauge = Gauge(4, 100)
    gauge.hold("runs", 4, 100)
    order: list[str] = []

    async def waits(name: str) -> None:
        await gauge.wait(name, 5)
        while gauge.free(name) == (0, 0):
            await gauge.wait(name, 5)
        order.append(name)
        gauge.hold(name, 1, 10)

    tasks = [asyncio.create_task(waits(n)) for n in ("first", "second")]
    await asyncio.sleep(0)
    assert gauge.free("runs") == (0, 0)
    gauge.hold("runs", 2, 60)
    assert gauge.free("runs") == (0, 0), "those who wait come first"
    await asyncio.gather(*tasks)
    assert order == ["first", "second"]
    assert gauge.free("runs") == (0, 20)


async def test_who_gives_up_leaves_the_line_to_the_next() -> None:
    gauge = Gauge(1, 10)
    gauge.hold("runs", 1, 10)
    first = asyncio.create_task(gauge.wait("first", 5))
    second = asyncio.create_task(gauge.wait("second", 5))
    await asyncio.sleep(0)
    gauge.release("first")
    gauge.release("runs")
    await second
    assert gauge.free("second") == (1, 10)
    assert gauge.alone("second")
    first.cancel()


async def test_a_wait_ends_when_its_time_is_over_and_keeps_its_place() -> None:
    gauge = Gauge(1, 10)
    gauge.hold("runs", 1, 10)
    await gauge.wait("first", 0.01)
    later = asyncio.create_task(gauge.wait("later", 1))
    await asyncio.sleep(0)
    gauge.release("runs")
    assert gauge.free("later") == (0, 0)
    assert gauge.free("first") == (1, 10)
    gauge.release("first")
    await later


async def test_what_is_held_adds_up_to_nothing_in_the_end() -> None:
    gauge = Gauge(8, 80)
    for n in range(20):
        gauge.hold(f"s{n % 5}", n % 3, n)
    for n in range(5):
        gauge.release(f"s{n}")
    assert (gauge.calls, gauge.searches, gauge.free("x")) == (0, 0, (8, 80))
