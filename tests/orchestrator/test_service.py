from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from engines.protocol import Chunk, GenerateRequest
from engines.scripted import Behaviour, ScriptedEngine
from guards.budget import Budget
from guards.ledger import Ledger
from guards.tenants import Tenant
from orchestrator.catalog import ServedModel
from orchestrator.errors import QueryError
from orchestrator.handle import SearchHandle
from orchestrator.outcome import Outcome
from orchestrator.request import Message, ReasonRequest, SamplingWish
from orchestrator.service import Orchestrator
from orchestrator.settings import LimitSettings
from search.log import EventLog, replay
from support.world import EOS, Noted, answers, memory_tracer, scripted_model

SECRET = bytes(32)


class Desk:
    """An orchestrator over one scripted model, and everything to look at it."""

    def __init__(
        self, ledger: Ledger, tenant: Tenant, model: ServedModel, engine: ScriptedEngine, **limits: Any
    ):
        self.ledger, self.tenant, self.model, self.engine = ledger, tenant, model, engine
        self.noted = Noted()
        self.provider, self.spans = memory_tracer()
        self.orchestrator = Orchestrator(
            {model.name: model},
            ledger,
            server_secret=SECRET,
            limits=LimitSettings(**limits),
            tracer=self.provider.get_tracer("test"),
            observer=self.noted,
        )

    async def ask(self, **fields: Any) -> Outcome:
        handle: SearchHandle = await self.start(**fields)
        return await handle.result()

    async def start(self, **fields: Any) -> SearchHandle:
        live = fields.pop("live", False)
        fields = {"messages": (Message("user", "hi"),), "model": self.model.name, **fields}
        return await self.orchestrator.start(ReasonRequest(**fields), self.tenant, carrier={}, live=live)

    async def used(self) -> int:
        return (await self.ledger.usage(self.tenant.id, self.tenant.budget))["day"].used

    async def nothing_left(self) -> bool:
        usage = await self.ledger.usage(self.tenant.id, self.tenant.budget)
        return (
            usage["day"].reserved == 0
            and await self.ledger.in_flight(self.tenant.id) == 0
            and not self.engine.running
            and self.model.gauge.searches == 0
        )


Make = Callable[..., Desk]


@pytest.fixture
async def make(ledger: Ledger, tenant: Tenant) -> AsyncIterator[Make]:
    desks: list[Desk] = []

    def build(*texts: str, limits: dict[str, Any] | None = None, **options: Any) -> Desk:
        model, engine = scripted_model(answers(*texts), **options)
        desks.append(Desk(ledger, tenant, model, engine, **(limits or {})))
        return desks[-1]

    yield build
    for desk in desks:
        await desk.orchestrator.close()


def judged(good: str) -> Callable[[tuple[int, ...], tuple[int, ...]], list[float]]:
    """Scores a path 0.9 where its text has `good`, else 0.2."""
    return lambda ids, _: [0.9, 0.1] if good in "".join(map(chr, ids)) else [0.2, 0.8]


async def test_a_vote_answers_with_the_majority_and_a_receipt(make: Make) -> None:
    desk = make("Answer: 7", "Answer: 8", "Answer: 7", "Answer: 7")
    outcome = await desk.ask(technique="self_consistency", params={"n": 4, "stop": "none"})
    assert (outcome.status, outcome.answer, outcome.complete) == ("completed", "7", True)
    receipt = outcome.receipt
    assert receipt.fates == {"chosen": 1, "agreed": 2, "outvoted": 1}
    assert receipt.generate_calls == 4
    assert receipt.support == pytest.approx(0.75)


async def test_case_13_every_token_is_charged_once_losers_and_verifier_included(make: Make) -> None:
    desk = make("Answer: 7", "Answer: 10", score=judged("7"))
    outcome = await desk.ask(technique="best_of_n", params={"n": 4, "width": 4})
    tokens = outcome.receipt.tokens
    prompt = len("u:hi\na:")
    assert outcome.answer == "7"
    assert tokens.prompt == prompt
    assert tokens.generated == 2 * (len("Answer: 7") + 1) + 2 * (len("Answer: 10") + 1)
    assert tokens.verifier == 2 * 2, "two different texts, each scored once"
    assert tokens.charged == tokens.prompt + tokens.generated + tokens.verifier
    assert await desk.used() == tokens.charged
    assert await desk.nothing_left()


async def test_siblings_find_the_prompt_in_the_cache(make: Make) -> None:
    desk = make("Answer: 7")
    tokens = (await desk.ask(technique="best_of_n", params={"n": 16})).receipt.tokens
    assert tokens.sibling_cached / (tokens.sibling_cached + tokens.sibling_fresh) >= 0.8
    assert tokens.first_call_cached == 0


async def test_case_38_one_sample_of_eight_fails_and_seven_are_voted_on(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, n: Behaviour(lost_after=3 if n == 2 else None))
    outcome = await desk.ask(technique="self_consistency", params={"n": 8, "stop": "none", "max_retries": 0})
    assert (outcome.status, outcome.answer) == ("completed", "7")
    assert outcome.receipt.fates["failed"] == 1
    assert outcome.receipt.failed_calls == 1
    assert "lost" in outcome.receipt.failures[0]
    assert sum(outcome.receipt.fates.values()) == 8


async def test_all_samples_lost_is_an_error_and_never_an_answer(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(lost_after=0))
    outcome = await desk.ask(technique="self_consistency", params={"n": 3})
    assert outcome.status == "failed"
    assert outcome.text == ""
    assert outcome.error is not None
    assert (outcome.error.status, outcome.error.code) == (503, "engine_unavailable")
    assert await desk.nothing_left()


async def test_case_24_a_parameter_that_the_engine_cannot_honour_is_a_400_that_names_it(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(refuse="regex"))
    outcome = await desk.ask(effort="low", sampling=SamplingWish(regex="a+"))
    assert outcome.error is not None
    assert (outcome.error.status, outcome.error.field) == (400, "regex")


async def test_case_25_sampling_reaches_the_engine_with_a_seed_of_its_own_per_sample(make: Make) -> None:
    desk = make("Answer: 7")
    await desk.ask(
        effort="high", sampling=SamplingWish(temperature=0.3, top_p=0.4), max_new_tokens=20, seed=5
    )
    sent = [r.sampling for r in desk.engine.requests]
    assert {(s.temperature, s.top_p, s.max_new_tokens) for s in sent} == {(0.3, 0.4, 20)}
    assert len({s.seed for s in sent}) == 16


async def test_the_same_seed_asks_the_engine_for_the_same(make: Make) -> None:
    first, second = make("Answer: 7"), make("Answer: 7")
    for desk in (first, second):
        await desk.ask(effort="high", seed=5)
    assert [r.sampling.seed for r in first.engine.requests] == [
        r.sampling.seed for r in second.engine.requests
    ]


async def test_the_engine_gets_the_tenants_salt(make: Make, ledger: Ledger, tenant: Tenant) -> None:
    desk = make("Answer: 7")
    await desk.ask(effort="high")
    salts = {r.cache_salt for r in desk.engine.requests} | {r.cache_salt for r in desk.engine.score_requests}
    assert len(salts) == 1
    assert None not in salts
    assert tenant.id not in str(salts)


async def test_a_deadline_gives_the_best_so_far_marked_partial(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, n: Behaviour(hang_after=2 if n >= 2 else None))
    outcome = await desk.ask(
        technique="self_consistency", params={"n": 6, "width": 6, "stop": "none"}, deadline_ms=300
    )
    assert (outcome.status, outcome.answer, outcome.receipt.stop_reason) == ("partial", "7", "deadline")
    assert outcome.receipt.fates["stopped"] == 4
    assert await desk.nothing_left()
    assert await desk.used() == outcome.receipt.tokens.charged


async def test_a_deadline_before_the_first_token_is_a_504(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(hang_after=0))
    outcome = await desk.ask(effort="low", deadline_ms=50)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.status, outcome.error.code) == ("failed", 504, "deadline_exceeded")
    assert await desk.nothing_left()


async def test_a_text_cut_by_the_deadline_has_no_answer(make: Make) -> None:
    desk = make("Answer: 1234", behave=lambda _, __: Behaviour(hang_after=9))
    outcome = await desk.ask(effort="low", deadline_ms=200)
    assert (outcome.status, outcome.complete, outcome.answer) == ("partial", False, None)
    assert outcome.text == "Answer: 1"


@pytest.mark.parametrize("cap", [12, 20, 40, 57, 100, 400])
@pytest.mark.parametrize("technique", ["single", "self_consistency", "best_of_n"])
async def test_case_9_the_cap_holds_over_everything(make: Make, cap: int, technique: str) -> None:
    desk = make("line one\nline two\nAnswer: 7")
    outcome = await desk.ask(technique=technique, max_total_tokens=cap, max_new_tokens=60)
    assert outcome.receipt.tokens.charged <= cap
    assert await desk.used() == outcome.receipt.tokens.charged
    assert outcome.status in ("completed", "partial")
    if outcome.receipt.stop_reason == "token_cap":
        assert outcome.status == "partial"
    assert await desk.nothing_left()


async def test_a_stopped_query_aborts_its_calls_in_the_engine(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(hang_after=1))
    handle = await desk.start(technique="best_of_n", params={"n": 8, "width": 8})
    while len(desk.engine.running) < 8:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    handle.stop("client_gone")
    outcome = await handle.result()
    assert sorted(set(desk.engine.aborts)) == sorted(r.call_id for r in desk.engine.requests)
    assert outcome.receipt.stop_reason == "client_gone"
    assert outcome.receipt.tokens.generated == 8
    assert await desk.used() == outcome.receipt.tokens.charged
    assert await desk.nothing_left()


async def test_tokens_that_come_after_the_decision_are_charged_and_reported(make: Make) -> None:
    slow = asyncio.Event()

    def behave(request: Any, n: int) -> Behaviour:
        return Behaviour(chunk_tokens=4, hang_after=8 if n == 3 else None)

    desk = make("Answer: 7", behave=behave)
    outcome = await desk.ask(technique="self_consistency", params={"n": 4, "width": 4})
    slow.set()
    assert outcome.receipt.stop_reason == "decided"
    tokens = outcome.receipt.tokens
    assert tokens.generated >= 3 * 10
    assert await desk.used() == tokens.charged


async def test_case_1_twenty_at_once_against_a_budget_for_three(
    make: Make, ledger: Ledger, tenant: Tenant
) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(delay_s=0.02))
    cap = 200
    desk.tenant = Tenant(tenant.id, tenant.name, Budget(day=3 * cap), tenant.created_at)

    async def one() -> Outcome | QueryError:
        try:
            return await desk.ask(technique="self_consistency", params={"n": 8}, max_total_tokens=cap)
        except QueryError as e:
            return e

    results = await asyncio.gather(*(one() for _ in range(20)))
    admitted = [r for r in results if isinstance(r, Outcome)]
    refused = [r for r in results if isinstance(r, QueryError)]
    assert len(admitted) == 3
    assert {(r.status, r.code) for r in refused} == {(429, "budget_exceeded")}
    assert all(r.retry_after_s for r in refused)
    assert await desk.used() == sum(r.receipt.tokens.charged for r in admitted) <= 3 * cap
    assert await desk.nothing_left()


async def test_case_4_a_tenant_without_a_budget_is_never_over_it(make: Make) -> None:
    desk = make("Answer: 7")
    for _ in range(3):
        assert (await desk.ask(effort="high")).status == "completed"


async def test_case_12_a_limit_of_zero_is_suspended_and_not_exceeded(make: Make, tenant: Tenant) -> None:
    desk = make("Answer: 7")
    desk.tenant = Tenant(tenant.id, tenant.name, Budget(day=0), tenant.created_at)
    with pytest.raises(QueryError) as e:
        await desk.ask()
    assert (e.value.status, e.value.code) == (403, "tenant_suspended")


async def test_a_request_above_the_whole_budget_says_what_to_lower(make: Make, tenant: Tenant) -> None:
    desk = make("Answer: 7")
    desk.tenant = Tenant(tenant.id, tenant.name, Budget(day=100), tenant.created_at)
    with pytest.raises(QueryError) as e:
        await desk.ask(effort="high")
    assert (e.value.status, e.value.code) == (429, "request_exceeds_budget")
    assert e.value.retry_after_s is not None
    assert 1 <= e.value.retry_after_s <= 86_400
    assert "lower" in str(e.value)


async def test_the_number_of_searches_is_bounded_also_in_a_burst(make: Make) -> None:
    desk = make(
        "Answer: 7",
        behave=lambda _, __: Behaviour(delay_s=0.02),
        limits={"max_concurrent_searches": 4},
    )
    results = await asyncio.gather(*(desk.ask(effort="low") for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(r, Outcome) for r in results) == 4
    refused = [r for r in results if isinstance(r, QueryError)]
    assert {(r.status, r.code, r.retry_after_s) for r in refused} == {(503, "overloaded", 1)}


async def test_an_engine_that_is_not_ready_is_a_503_before_anything_is_reserved(make: Make) -> None:
    desk = make("Answer: 7")
    desk.engine.lose()
    with pytest.raises(QueryError) as e:
        await desk.ask()
    assert (e.value.status, e.value.code) == (503, "engine_unavailable")
    assert await desk.nothing_left()


async def test_losing_the_engine_after_an_answer_keeps_the_answer(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, n: Behaviour(hang_after=1 if n >= 2 else None))
    handle = await desk.start(technique="self_consistency", params={"n": 6, "width": 6, "stop": "none"})
    while len(desk.engine.running) != 4:
        await asyncio.sleep(0.001)
    desk.engine.lose()
    outcome = await handle.result()
    assert outcome.answer == "7"
    assert outcome.receipt.fates["failed"] >= 4
    assert await desk.nothing_left()


async def test_the_log_of_a_real_run_replays_to_the_same_answer(make: Make) -> None:
    desk = make("Answer: 7", "Answer: 8", score=judged("8"))
    outcome = await desk.ask(technique="best_of_n", params={"n": 6}, keep_log=True)
    assert outcome.log is not None
    log = EventLog.from_lines(outcome.log.splitlines())
    best = replay(log).best()
    assert best is not None
    assert best.answer == outcome.answer == "8"


async def test_a_stream_of_one_sample_passes_its_text_on_and_is_never_drawn_again(make: Make) -> None:
    desk = make("one two three", behave=lambda _, __: Behaviour(chunk_tokens=2, lost_after=5))
    handle = await desk.start(effort="low", live=True)
    pieces = [piece async for piece in handle.texts()]
    outcome = await handle.result()
    assert "".join(pieces) == "one t"
    assert (outcome.status, outcome.text) == ("failed", "")
    assert outcome.error is not None
    assert outcome.error.status == 503
    assert len(desk.engine.requests) == 1


async def test_a_trace_has_one_root_and_one_span_per_call_also_when_cut(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, n: Behaviour(hang_after=2 if n >= 2 else None))
    await desk.ask(technique="best_of_n", params={"n": 4}, deadline_ms=1000)
    spans = desk.spans.get_finished_spans()
    roots = [s for s in spans if s.parent is None]
    assert len(roots) == 1
    assert len(spans) == 1 + len(desk.engine.requests) + len(desk.engine.score_requests)
    assert all(
        s.parent is not None and s.parent.span_id == roots[0].context.span_id for s in spans if s not in roots
    )
    assert roots[0].attributes is not None
    assert roots[0].attributes["pondera.cancelled"] is True
    assert roots[0].attributes["pondera.stop_reason"] == "deadline"
    generations = [s for s in spans if s.name.startswith("generate")]
    cut = [s.attributes for s in generations if s.attributes and s.attributes["pondera.cancelled"]]
    assert cut
    assert {a["gen_ai.usage.output_tokens"] for a in cut} == {2}
    assert all(roots[0].end_time >= s.end_time for s in spans)  # type: ignore[operator]
    text = " ".join(f"{s.name} {dict(s.attributes or {})}" for s in spans)
    assert "Answer" not in text


async def test_a_failed_query_marks_its_root_span(make: Make) -> None:
    desk = make("x", behave=lambda _, __: Behaviour(lost_after=0))
    await desk.ask(effort="low")
    root = next(s for s in desk.spans.get_finished_spans() if s.parent is None)
    assert root.status.status_code is StatusCode.ERROR


async def test_the_calls_trace_context_goes_to_the_engine(make: Make) -> None:
    desk = make("Answer: 7")
    await desk.ask(effort="low")
    root = next(s for s in desk.spans.get_finished_spans() if s.parent is None)
    assert f"{root.context.trace_id:032x}" in desk.engine.requests[0].trace["traceparent"]


async def test_closing_ends_running_queries_with_their_best_and_takes_no_more(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, n: Behaviour(hang_after=1 if n else None))
    handle = await desk.start(technique="self_consistency", params={"n": 4, "stop": "none"})
    while len(desk.engine.running) != 3 or desk.engine.requests[0].call_id in desk.engine.running:
        await asyncio.sleep(0.001)
    await desk.orchestrator.close()
    outcome = await handle.result()
    assert (outcome.status, outcome.receipt.stop_reason) == ("partial", "shutdown")
    with pytest.raises(QueryError) as e:
        await desk.ask()
    assert e.value.code == "shutting_down"


async def test_a_search_waits_for_kv_room_that_others_hold(make: Make) -> None:
    desk = make("Answer: 7", kv_tokens=512)
    desk.model.gauge.hold("other", 1, 505)
    handle = await desk.start(effort="low")
    await asyncio.sleep(0.05)
    assert not handle.done
    assert not desk.engine.requests
    desk.model.gauge.release("other")
    assert (await handle.result()).answer == "7"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    technique=st.sampled_from(["single", "self_consistency", "best_of_n"]),
    cap=st.integers(20, 600),
    faults=st.lists(st.integers(0, 12), max_size=6),
    stop_after=st.one_of(st.none(), st.integers(0, 12)),
)
async def test_case_6_whatever_fails_nothing_stays_reserved_and_the_charge_is_the_count(
    ledger: Ledger, tenant: Tenant, technique: str, cap: int, faults: list[int], stop_after: int | None
) -> None:
    def behave(request: Any, n: int) -> Behaviour:
        fault = faults[n] if n < len(faults) else 99
        return Behaviour(
            chunk_tokens=3, lost_after=fault if isinstance(request, GenerateRequest) and fault < 12 else None
        )

    model, engine = scripted_model(answers("step\nAnswer: 7", "Answer: 12"), behave=behave)
    desk = Desk(ledger, tenant, model, engine)
    before = await desk.used()
    handle = await desk.start(technique=technique, max_total_tokens=cap)
    if stop_after is not None:
        for _ in range(stop_after):
            await asyncio.sleep(0)
        handle.stop("client_gone")
    outcome = await handle.result()
    assert outcome.receipt.tokens.charged <= cap
    assert await desk.used() - before == outcome.receipt.tokens.charged
    assert await desk.nothing_left()
    assert (outcome.error is None) == (outcome.status != "failed")


async def test_searches_that_do_not_fit_together_take_turns_and_all_end(make: Make) -> None:
    prompt = "x" * 400
    desk = make("Answer: 7", kv_tokens=1200, behave=lambda _, __: Behaviour(delay_s=0.001))
    held = 0
    hold = desk.model.gauge.hold

    def counted(search_id: str, calls: int, kv_tokens: int) -> None:
        nonlocal held
        held += 1
        assert desk.model.gauge.calls <= desk.model.gauge.slots
        hold(search_id, calls, kv_tokens)

    desk.model.gauge.hold = counted  # type: ignore[method-assign]
    outcomes = await asyncio.gather(
        *(
            desk.ask(messages=(Message("user", prompt),), effort="medium", deadline_ms=10_000)
            for _ in range(8)
        )
    )
    assert {(o.status, o.answer) for o in outcomes} == {("completed", "7")}
    calls = sum(o.receipt.generate_calls for o in outcomes)
    assert held < 40 * calls
    assert await desk.nothing_left()


async def test_the_slots_of_a_model_hold_over_all_searches(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(delay_s=0.001))
    desk.model.gauge.slots = 3
    most = 0

    def watch(request: Any, n: int) -> Behaviour:
        nonlocal most
        most = max(most, len(desk.engine.running) + 1)
        return Behaviour(delay_s=0.001)

    desk.engine._behave = watch
    outcomes = await asyncio.gather(
        *(desk.ask(technique="best_of_n", params={"n": 6, "width": 6}) for _ in range(5))
    )
    assert {o.status for o in outcomes} == {"completed"}
    assert most <= 3


async def test_a_query_that_is_admitted_while_the_server_closes_is_refused_and_settled(
    make: Make, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make("Answer: 7")
    reserving, go_on = asyncio.Event(), asyncio.Event()
    reserve = ledger.reserve

    async def slow(*args: Any) -> Any:
        reserving.set()
        await go_on.wait()
        return await reserve(*args)

    monkeypatch.setattr(ledger, "reserve", slow)
    query = asyncio.create_task(desk.ask())
    await reserving.wait()
    closing = asyncio.create_task(desk.orchestrator.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    go_on.set()
    with pytest.raises(QueryError) as e:
        await query
    assert e.value.code == "shutting_down"
    await closing
    assert await desk.nothing_left()
    assert not desk.engine.requests


async def test_a_refusal_is_found_once_and_costs_nothing(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(refuse="regex"))
    outcome = await desk.ask(technique="best_of_n", params={"n": 500}, sampling=SamplingWish(regex="a+"))
    assert len(desk.engine.requests) == 1
    assert outcome.receipt.tokens.charged == 0
    assert await desk.used() == 0


async def test_an_engine_that_is_lost_for_good_ends_the_run_at_once(make: Make) -> None:
    desk = make("Answer: 7", behave=lambda _, __: Behaviour(hang_after=1))
    handle = await desk.start(technique="best_of_n", params={"n": 200, "width": 8})
    while len(desk.engine.running) < 8:
        await asyncio.sleep(0.001)
    desk.engine.lose()
    outcome = await handle.result()
    assert outcome.error is not None
    assert (outcome.error.code, outcome.receipt.stop_reason) == ("engine_unavailable", "engine_lost")
    assert len(desk.engine.requests) == 8


async def test_a_stream_without_an_end_is_a_failure_and_no_hang(make: Make) -> None:
    desk = make("Answer: 7")

    async def broken(request: GenerateRequest) -> AsyncIterator[Any]:
        yield Chunk((65,))

    desk.engine.generate = broken  # type: ignore[method-assign]
    outcome = await asyncio.wait_for(desk.ask(effort="low"), 5)
    assert outcome.error is not None
    assert "without saying how" in outcome.receipt.failures[0]


async def test_a_store_that_fails_after_the_answer_does_not_lose_the_answer(
    make: Make, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make("Answer: 7")

    async def fails(*_: Any) -> Any:
        raise RuntimeError("settling is broken")

    monkeypatch.setattr(ledger, "settle", fails)
    outcome = await desk.ask(effort="low")
    assert (outcome.status, outcome.answer) == ("completed", "7")


async def test_a_refused_query_leaves_one_ended_root_span(make: Make) -> None:
    desk = make("Answer: 7")
    with pytest.raises(QueryError):
        await desk.ask(technique="tarot")
    spans = desk.spans.get_finished_spans()
    assert len(spans) == 1
    assert spans[0].status.status_code is StatusCode.ERROR
    assert spans[0].attributes is not None
    assert spans[0].attributes["pondera.stop_reason"] == "unknown_technique"


async def test_stopping_after_the_decision_does_not_make_the_answer_partial(make: Make) -> None:
    desk = make("Answer: 7")
    handle = await desk.start(effort="low")
    outcome = await handle.result()
    handle.stop("client_gone")
    assert outcome.status == "completed"


@pytest.mark.parametrize("text", ["one two STOP three", "ab🦜cd STOP x", "no end at all"])
@pytest.mark.parametrize("kv_free", [10, 12, 14])
async def test_a_sample_drawn_in_slices_reads_like_one_drawn_whole(
    ledger: Ledger, tenant: Tenant, text: str, kv_free: int
) -> None:
    def goes_on(ids: tuple[int, ...], _: int | None) -> list[int]:
        written = "".join(map(chr, ids)).split("a:")[1]
        return [*map(ord, text[len(written) :]), EOS]

    def desk_of(kv_tokens: int) -> Desk:
        return Desk(ledger, tenant, *scripted_model(goes_on, kv_tokens=kv_tokens))

    wish = SamplingWish(stop=("STOP",))
    expected = await desk_of(8192).ask(effort="low", sampling=wish, max_new_tokens=30)
    sliced = desk_of(512)
    sliced.model.gauge.hold("other", 1, 512 - kv_free)
    task = asyncio.create_task(sliced.ask(effort="low", sampling=wish, max_new_tokens=30))
    while len(sliced.engine.requests) < 1 or sliced.engine.running:
        await asyncio.sleep(0.001)
    sliced.model.gauge.release("other")
    got = await task
    assert len(sliced.engine.requests) > 1
    assert (got.text, got.status) == (expected.text, expected.status)
    assert got.status == "completed"


async def test_a_grammar_is_never_cut_into_slices(make: Make) -> None:
    desk = make("Answer: 7")
    requests: list[GenerateRequest] = desk.engine.requests
    desk.model.gauge.hold("other", 1, desk.model.gauge.kv_tokens - 40)
    task = asyncio.create_task(
        desk.ask(effort="low", sampling=SamplingWish(presence_penalty=0.5), max_new_tokens=60)
    )
    await asyncio.sleep(0.05)
    assert not requests
    desk.model.gauge.release("other")
    assert (await task).status == "completed"
    assert [r.sampling.max_new_tokens for r in requests] == [60]


async def test_with_several_replicas_the_one_that_is_lost_is_passed_over(
    ledger: Ledger, tenant: Tenant
) -> None:
    model, lost = scripted_model(answers("Answer: 7"))
    other, engine = scripted_model(answers("Answer: 7"))
    lost.lose()
    pair = replace(model, engines=(*model.engines, *other.engines))
    desk = Desk(ledger, tenant, pair, engine)
    assert (await desk.ask(effort="high")).status == "completed"
    assert len(engine.requests) == 16
    assert not lost.requests
