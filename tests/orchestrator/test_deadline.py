"""An answer at its deadline does not wait for engines that are slow to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from engines.scripted import Behaviour
from guards.ledger import Ledger
from guards.tenants import Tenant
from support.world import answers, scripted_model
from tests.orchestrator.test_service import Desk


@pytest.fixture
async def slow(ledger: Ledger, tenant: Tenant) -> AsyncIterator[Desk]:
    """An engine whose first two answers come at once, and which ends a call a second after it was told to."""

    def behave(_: Any, number: int) -> Behaviour:
        return Behaviour() if number < 2 else Behaviour(delay_s=0.2, hang_after=3)

    model, engine = scripted_model(answers("Answer: 7"), behave=behave)
    abort = engine.abort

    async def abort_late(call_ids: Sequence[str]) -> None:
        await asyncio.sleep(1.0)
        await abort(call_ids)

    engine.abort = abort_late  # type: ignore[method-assign]
    desk = Desk(ledger, tenant, model, engine)
    yield desk
    await desk.orchestrator.close()


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.01)
    assert condition()


async def test_the_answer_comes_at_the_deadline_and_every_token_is_settled_all_the_same(slow: Desk) -> None:
    begin = time.monotonic()
    outcome = await slow.ask(
        technique="self_consistency", params={"n": 6, "width": 6, "stop": "none"}, deadline_ms=600
    )
    took = time.monotonic() - begin
    assert (outcome.status, outcome.answer) == ("partial", "7")
    assert outcome.receipt.late_calls > 0
    assert took < 1.1, "it waited for the engine"
    await until(lambda: not slow.engine.running)
    await until(lambda: not slow.orchestrator._tasks)
    produced = (
        len("u:hi\na:")
        + 2 * (len("Answer: 7") + 1)
        + sum(
            s.attributes["gen_ai.usage.output_tokens"]  # type: ignore[index, misc]
            for s in slow.spans.get_finished_spans()
            if s.name.startswith("generate") and s.attributes["pondera.cancelled"]  # type: ignore[index]
        )
    )
    assert await slow.used() == produced
    assert await slow.nothing_left()


async def test_case_65_the_root_ends_after_its_late_children(slow: Desk) -> None:
    await slow.ask(technique="self_consistency", params={"n": 6, "width": 6, "stop": "none"}, deadline_ms=600)
    await until(lambda: not slow.orchestrator._tasks)
    spans = slow.spans.get_finished_spans()
    (root,) = [s for s in spans if s.parent is None]
    assert len(spans) > 3
    assert all(root.end_time >= s.end_time for s in spans)  # type: ignore[operator]
