"""The real SGLang in a Ray actor, with the tiny reasoner."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import ray

from engines.protocol import (
    Chunk,
    EngineLost,
    EngineRefused,
    Finish,
    GenerateRequest,
    Sampling,
    ScoreRequest,
    Usage,
)
from engines.ray_engine import NAMESPACE, RayEngine, attach_engine, start_engine
from engines.spec import EngineSpec
from engines.tokenizer import ModelTokenizer

MODEL = Path(__file__).parents[2] / "infra" / "models" / "tiny_reasoner" / "model"
LEASE_S = 2.0
CONTEXT = 510
RESTART_S = 90

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(150),
]


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(MODEL)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, namespace=NAMESPACE)
    yield
    if started:
        ray.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(local_ray: None) -> AsyncIterator[RayEngine]:
    spec = EngineSpec("real", str(MODEL), dtype="float32", max_total_tokens=16_000, max_running_requests=16)
    started = await start_engine(spec, lease_s=LEASE_S)
    yield started
    await started.close()


@dataclass(frozen=True)
class Result:
    chunks: tuple[Chunk, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(value for chunk in self.chunks for value in chunk.logprobs)

    @property
    def end(self) -> Chunk:
        return self.chunks[-1]

    @property
    def usage(self) -> Usage:
        assert self.end.usage is not None
        return self.end.usage


async def generate(engine: RayEngine, request: GenerateRequest) -> Result:
    return Result(tuple([chunk async for chunk in engine.generate(request)]))


class Asker:
    """Requests with fresh call ids, and by default greedy."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.tokenizer = tokenizer
        self.number = 0

    def prompt(self, question: str) -> tuple[int, ...]:
        return self.tokenizer.encode_chat([{"role": "user", "content": f"Compute {question}."}])

    def __call__(self, question: str = "(47+38)*3-29", **fields: Any) -> GenerateRequest:
        self.number += 1
        own = {name: fields.pop(name) for name in list(fields) if name not in Sampling.__dataclass_fields__}
        sampling = Sampling(**{"max_new_tokens": 100, "temperature": 0.0, **fields})
        ids = own.pop("input_ids", None) or self.prompt(question)
        return GenerateRequest(own.pop("call_id", f"call-{self.number}"), ids, sampling, **own)


@pytest.fixture(scope="module")
def ask(tokenizer: ModelTokenizer) -> Asker:
    return Asker(tokenizer)


async def until(condition: Any, seconds: float) -> float:
    """Seconds until an async condition held; fails when it does not within `seconds`."""
    started = time.monotonic()
    while not await condition():
        assert time.monotonic() - started < seconds, "the condition did not come to hold"
        await asyncio.sleep(0.02)
    return time.monotonic() - started


async def test_the_engine_tells_what_it_serves(engine: RayEngine) -> None:
    info = await engine.info()
    assert (info.engine, info.device, info.dtype) == ("sglang", "cpu", "float32")
    assert (info.context_tokens, info.kv_tokens_total, info.max_running) == (CONTEXT, 16_000, 16)
    assert await engine.ready()


async def test_a_greedy_answer_streams_ids_that_add_up_to_its_usage(
    engine: RayEngine, ask: Asker, tokenizer: ModelTokenizer
) -> None:
    request = ask()
    result = await generate(engine, request)
    assert "Answer: " in tokenizer.decode(result.ids)
    assert result.end.finish is Finish.STOP
    assert result.end.matched_stop in tokenizer.eos_ids
    assert len(result.chunks[0].token_ids) == 1
    assert len(result.chunks) < len(result.ids) / 2
    assert result.usage.completion_tokens == len(result.ids)
    assert result.usage.prompt_tokens == len(request.input_ids)
    assert result.end.engine_s is not None
    assert result.end.engine_s > 0


async def test_logprobs_come_with_their_tokens_and_best_alternatives_first(
    engine: RayEngine, ask: Asker
) -> None:
    result = await generate(engine, ask(logprobs=True, top_logprobs=3))
    assert len(result.logprobs) == len(result.ids)
    top = [row for chunk in result.chunks for row in chunk.top_logprobs]
    assert len(top) == len(result.ids)
    for token, value, row in zip(result.ids, result.logprobs, top, strict=True):
        assert row[0][0] == token
        assert row[0][1] == pytest.approx(value)
        assert [v for _, v in row] == sorted((v for _, v in row), reverse=True)
    assert not (await generate(engine, ask())).logprobs


async def test_logprobs_do_not_depend_on_the_temperature_or_on_who_shares_the_batch(
    engine: RayEngine, ask: Asker
) -> None:
    greedy, forced, _ = await asyncio.gather(
        generate(engine, ask(logprobs=True)),
        generate(engine, ask(logprobs=True, temperature=3.0, top_k=1)),
        generate(engine, ask("1+1", temperature=2.0, seed=5)),
    )
    assert forced.ids == greedy.ids
    assert forced.logprobs == pytest.approx(greedy.logprobs, abs=1e-3)


async def test_a_seed_repeats_its_sample_alone_and_in_company(engine: RayEngine, ask: Asker) -> None:
    async def sample(seed: int | None) -> tuple[int, ...]:
        return (await generate(engine, ask("(9*8-7)*6%500", temperature=1.0, seed=seed))).ids

    alone = [await sample(seed) for seed in range(6)]
    together = await asyncio.gather(*[sample(seed) for seed in [*range(6), *range(6), None, None]])
    assert list(together[:6]) == alone
    assert list(together[6:12]) == alone
    assert len(set(alone)) >= 3


async def test_samples_without_a_seed_differ(engine: RayEngine, ask: Asker) -> None:
    samples = await asyncio.gather(*[generate(engine, ask(temperature=3.0)) for _ in range(4)])
    assert len({sample.ids for sample in samples}) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 3.0, "top_k": 1},
        {"temperature": 3.0, "top_p": 1e-6},
        {"temperature": 3.0, "min_p": 1.0},
    ],
    ids=["top_k", "top_p", "min_p"],
)
async def test_case_24_filters_narrow_a_hot_sample_to_the_greedy_one(
    engine: RayEngine, ask: Asker, fields: dict[str, Any]
) -> None:
    greedy, hot, narrowed = await asyncio.gather(
        generate(engine, ask()),
        generate(engine, ask(temperature=3.0, seed=1)),
        generate(engine, ask(seed=1, **fields)),
    )
    assert hot.ids != greedy.ids
    assert narrowed.ids == greedy.ids


@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
async def test_case_24_penalties_lead_to_more_different_tokens(
    engine: RayEngine, ask: Asker, field: str
) -> None:
    bounds: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
    plain = await generate(engine, ask(**bounds))
    penalised = await generate(engine, ask(**{**bounds, field: 2.0}))
    assert len(set(penalised.ids)) > len(set(plain.ids))


async def test_case_25_lengths_are_those_that_were_asked_for(
    engine: RayEngine, ask: Asker, tokenizer: ModelTokenizer
) -> None:
    short = await generate(engine, ask(max_new_tokens=5))
    assert (len(short.ids), short.end.finish) == (5, Finish.LENGTH)
    plain = await generate(engine, ask("1+1"))
    longer = len(plain.ids) + 10
    held = await generate(engine, ask("1+1", min_new_tokens=longer))
    assert len(held.ids) > longer - 1
    assert not set(tokenizer.eos_ids) & set(held.ids[: longer - 1])
    unending = await generate(engine, ask("1+1", ignore_eos=True, max_new_tokens=longer))
    assert (len(unending.ids), unending.end.finish) == (longer, Finish.LENGTH)


async def test_case_24_stop_strings_and_tokens_end_it_and_are_among_the_ids(
    engine: RayEngine, ask: Asker, tokenizer: ModelTokenizer
) -> None:
    at_line = await generate(engine, ask(stop=("\n",)))
    assert (at_line.end.finish, at_line.end.matched_stop) == (Finish.STOP, "\n")
    assert tokenizer.decode(at_line.ids).count("\n") == 1
    assert tokenizer.decode(at_line.ids).endswith("\n")
    assert at_line.usage.completion_tokens == len(at_line.ids)
    equals = tokenizer.token_id("=")
    at_token = await generate(engine, ask(stop_token_ids=(equals,)))
    assert at_token.end.matched_stop == equals
    assert at_token.ids[-1] == equals


async def test_case_24_a_bias_forces_and_forbids_tokens(
    engine: RayEngine, ask: Asker, tokenizer: ModelTokenizer
) -> None:
    seven, four = tokenizer.token_id("7"), tokenizer.token_id("4")
    forced = await generate(engine, ask(logit_bias=((seven, 1000.0),), max_new_tokens=6))
    assert forced.ids == (seven,) * 6
    plain = await generate(engine, ask())
    forbidden = await generate(engine, ask(logit_bias=((four, -1000.0),)))
    assert four in plain.ids
    assert four not in forbidden.ids


async def test_case_24_grammars_shape_the_output(
    engine: RayEngine, ask: Asker, tokenizer: ModelTokenizer
) -> None:
    by_regex = await generate(engine, ask(regex="x[0-9]{3}y"))
    text = tokenizer.decode(by_regex.ids)
    assert (len(text), text[0], text[-1]) == (5, "x", "y")
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    by_schema = await generate(engine, ask(json_schema=json.dumps(schema)))
    assert list(json.loads(tokenizer.decode(by_schema.ids))) == ["ok"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input_ids": (9999,)}, "input_ids"),
        ({"input_ids": (7,) * CONTEXT}, "input_ids"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": CONTEXT}, "max_new_tokens"),
        ({"min_new_tokens": 101}, "min_new_tokens"),
        ({"temperature": math.nan}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"logit_bias": ((8, math.nan),)}, "logit_bias"),
        ({"json_schema": '{"type": "wat"}'}, "json_schema"),
        ({"regex": "(["}, "regex"),
        ({"regex": "(a{1,1000}){1,1000}"}, "regex"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
async def test_case_24_what_cannot_be_honoured_is_refused_by_its_name(
    engine: RayEngine, ask: Asker, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(EngineRefused) as refused:
        await generate(engine, ask(**fields))
    assert refused.value.field == field


async def test_prompt_and_output_may_fill_the_context_to_the_last_token(
    engine: RayEngine, ask: Asker
) -> None:
    request = ask("1+1")
    room = CONTEXT - len(request.input_ids)
    result = await generate(engine, ask("1+1", max_new_tokens=room, ignore_eos=True))
    assert len(result.ids) == room


def judged(ask: Asker, line: str, call_id: str, salt: str | None = None) -> ScoreRequest:
    tokenizer = ask.tokenizer
    ids = ask.prompt("47+38") + tokenizer.encode(f"{line}<|judge|>")
    return ScoreRequest(call_id, ids, (tokenizer.token_id("+"), tokenizer.token_id("-")), salt)


async def test_a_score_is_the_normalised_probability_of_its_labels_and_is_cached(
    engine: RayEngine, ask: Asker
) -> None:
    right = await engine.score(judged(ask, "47+38=85", "right"))
    wrong = await engine.score(judged(ask, "47+38=84", "wrong"))
    assert sum(right.probabilities) == pytest.approx(1.0)
    assert right.probabilities[0] > 0.9 > 0.5 > wrong.probabilities[0]
    request = judged(ask, "47+38=85", "again")
    generated = await generate(
        engine, ask(input_ids=request.input_ids, max_new_tokens=1, logprobs=True, top_logprobs=8)
    )
    logprobs = dict(generated.chunks[0].top_logprobs[0])
    plus, minus = (math.exp(logprobs[label]) for label in request.label_ids)
    assert right.probabilities[0] == pytest.approx(plus / (plus + minus), abs=1e-4)
    again = await engine.score(request)
    assert again.probabilities == pytest.approx(right.probabilities, abs=1e-4)
    assert again.usage == Usage(len(request.input_ids), len(request.input_ids) - 1, 1)


async def test_scores_keep_their_value_among_hot_samples(engine: RayEngine, ask: Asker) -> None:
    alone = await engine.score(judged(ask, "47+38=85", "alone"))
    samples = asyncio.gather(*[generate(engine, ask(temperature=3.0)) for _ in range(4)])
    scores = await asyncio.gather(*[engine.score(judged(ask, "47+38=85", f"s{i}")) for i in range(6)])
    await samples
    for score in scores:
        assert score.probabilities == pytest.approx(alone.probabilities, abs=1e-3)


async def test_case_63_prefixes_are_not_shared_across_salts(engine: RayEngine, ask: Asker) -> None:
    async def cached(salt: str) -> int:
        return (await generate(engine, ask("(61-17)*4", cache_salt=salt))).usage.cached_tokens

    length = len(ask.prompt("(61-17)*4"))
    assert await cached("tenant-a") == 0
    assert await cached("tenant-b") == 0
    assert await cached("tenant-a") == length - 1
    first = await engine.score(judged(ask, "47+38=85", "salted", salt="tenant-c"))
    assert first.usage.cached_tokens == 0


async def test_case_22_siblings_reuse_their_parent_and_count_it_once_each(
    engine: RayEngine, ask: Asker
) -> None:
    parent = ask("((83-44)*7+12)%90", cache_salt="family", max_new_tokens=30, ignore_eos=True)
    grown = parent.input_ids + (await generate(engine, parent)).ids
    children = await asyncio.gather(
        *[
            generate(
                engine,
                ask(input_ids=grown, cache_salt="family", temperature=1.0, seed=seed, max_new_tokens=4),
            )
            for seed in range(8)
        ]
    )
    for child in children:
        assert child.usage.prompt_tokens == len(grown)
        assert 0.9 * len(grown) <= child.usage.cached_tokens < len(grown)


async def test_case_16_aborted_calls_all_end_soon_and_count_their_partial_tokens(
    engine: RayEngine, ask: Asker
) -> None:
    requests = [ask(ignore_eos=True, max_new_tokens=450, temperature=1.0) for _ in range(8)]
    tasks = [asyncio.create_task(generate(engine, request)) for request in requests]

    async def running() -> bool:
        return (await engine.load()).running == 8

    await until(running, 20)
    started = time.monotonic()
    await engine.abort([request.call_id for request in requests])
    results = await asyncio.gather(*tasks)
    assert time.monotonic() - started < 2
    for result in results:
        assert result.end.finish is Finish.ABORT
        assert 0 < result.usage.completion_tokens == len(result.ids) < 450
    await until_idle(engine, 5)


async def until_idle(engine: RayEngine, seconds: float) -> float:
    async def idle() -> bool:
        load = await engine.load()
        return load.running == load.queued == 0

    return await until(idle, seconds)


async def test_a_call_aborted_before_it_began_still_ends(engine: RayEngine, ask: Asker) -> None:
    request = ask(ignore_eos=True, max_new_tokens=450)
    task = asyncio.create_task(generate(engine, request))
    await asyncio.sleep(0)
    await engine.abort([request.call_id])
    result = await task
    assert result.end.finish is Finish.ABORT
    assert result.usage.completion_tokens == len(result.ids)


async def test_calls_aborted_in_the_queue_end_without_tokens(engine: RayEngine, ask: Asker) -> None:
    requests = [ask(ignore_eos=True, max_new_tokens=450, temperature=1.0) for _ in range(20)]
    tasks = [asyncio.create_task(generate(engine, request)) for request in requests]

    async def queueing() -> bool:
        return (await engine.load()).queued == 4

    await until(queueing, 20)
    queued = [i for i, task in enumerate(tasks) if not task.done()][16:]
    await engine.abort([requests[i].call_id for i in queued])
    for i in queued:
        result = await asyncio.wait_for(tasks[i], 2)
        assert (result.end.finish, result.ids) == (Finish.ABORT, ())
        assert result.usage == Usage(len(requests[i].input_ids), 0, 0)
    await engine.abort([request.call_id for request in requests])
    await asyncio.gather(*tasks)
    await until_idle(engine, 5)


async def test_an_abort_does_not_hit_calls_whose_id_begins_alike(engine: RayEngine, ask: Asker) -> None:
    short, long = ask(call_id="c", ignore_eos=True), ask(call_id="c1", ignore_eos=True)
    tasks = [asyncio.create_task(generate(engine, request)) for request in (short, long)]
    await asyncio.sleep(0.1)
    await engine.abort(["c"])
    ended, untouched = await asyncio.gather(*tasks)
    assert ended.end.finish is Finish.ABORT
    assert untouched.end.finish is Finish.LENGTH


async def test_case_15_aborts_in_every_phase_leave_nothing_running(engine: RayEngine, ask: Asker) -> None:
    async def brief(delay: float) -> Result:
        request = ask(ignore_eos=True, max_new_tokens=450, temperature=1.0)
        task = asyncio.create_task(generate(engine, request))
        await asyncio.sleep(delay)
        await engine.abort([request.call_id])
        return await asyncio.wait_for(task, 10)

    results = await asyncio.gather(*[brief(i * 0.013) for i in range(40)])
    for result in results:
        assert result.end.finish is Finish.ABORT
        assert result.usage.completion_tokens == len(result.ids)
    await until_idle(engine, 5)
    assert (await generate(engine, ask("1+1"))).end.finish is Finish.STOP


async def test_a_stream_that_is_left_early_neither_aborts_nor_disturbs(engine: RayEngine, ask: Asker) -> None:
    request = ask(ignore_eos=True, max_new_tokens=450)
    stream = engine.generate(request)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]

    async def still_running() -> bool:
        return (await engine.load()).running == 1

    assert (await generate(engine, ask("1+1"))).end.finish is Finish.STOP
    await until(still_running, 5)
    await engine.abort([request.call_id])
    await until_idle(engine, 5)


async def test_a_call_id_is_used_by_one_call_at_a_time(engine: RayEngine, ask: Asker) -> None:
    request = ask(ignore_eos=True, max_new_tokens=450)
    task = asyncio.create_task(generate(engine, request))
    await asyncio.sleep(0)
    with pytest.raises(EngineRefused) as refused:
        await generate(engine, request)
    assert refused.value.field == "call_id"
    await engine.abort([request.call_id])
    await task
    assert (await generate(engine, replace(request, sampling=Sampling(2)))).end.finish is not None


async def test_trace_headers_and_priorities_are_taken(engine: RayEngine, ask: Asker) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    result = await generate(engine, ask("1+1", trace=trace, priority=5))
    assert result.end.finish is Finish.STOP


async def test_a_client_that_dies_takes_its_calls_with_it(engine: RayEngine, ask: Asker) -> None:
    @ray.remote(num_cpus=0)
    class Client:
        async def begin(self, requests: list[GenerateRequest]) -> None:
            self.engine = await attach_engine("real", lease_s=LEASE_S)
            self.streams = [self.engine.generate(request) for request in requests]
            await asyncio.gather(*[anext(stream) for stream in self.streams])

    client = Client.remote()  # type: ignore[attr-defined]
    await client.begin.remote([ask(ignore_eos=True, max_new_tokens=480) for _ in range(16)])

    async def all_running() -> bool:
        return (await engine.load()).running == 16

    await until(all_running, 5)
    ray.kill(client)
    await until_idle(engine, 3 * LEASE_S)


async def test_the_death_of_the_scheduler_is_noticed_and_mended(engine: RayEngine, ask: Asker) -> None:
    actor, *workers = await engine.process_ids()
    task = asyncio.create_task(generate(engine, ask(ignore_eos=True, max_new_tokens=450)))
    await asyncio.sleep(0.2)
    os.kill(workers[0], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineLost):
        await asyncio.wait_for(task, 10)
    assert time.monotonic() - started < 2
    assert not await engine.ready()
    with pytest.raises(EngineLost):
        await generate(engine, ask("1+1"))
    await until(engine.ready, RESTART_S)
    assert not [pid for pid in (actor, *workers) if alive(pid)]
    assert (await generate(engine, ask("1+1"))).end.finish is Finish.STOP


async def test_the_death_of_the_actor_is_noticed_and_mended(engine: RayEngine, ask: Asker) -> None:
    actor, *workers = await engine.process_ids()
    task = asyncio.create_task(generate(engine, ask(ignore_eos=True, max_new_tokens=450)))
    await asyncio.sleep(0.2)
    os.kill(actor, signal.SIGKILL)
    with pytest.raises(EngineLost):
        await asyncio.wait_for(task, 10)
    assert not await engine.ready()
    await until(engine.ready, RESTART_S)
    assert not [pid for pid in (actor, *workers) if alive(pid)]
    assert (await generate(engine, ask("1+1"))).end.finish is Finish.STOP


async def test_closing_leaves_no_process_behind(engine: RayEngine, ask: Asker) -> None:
    actor, *_ = await engine.process_ids()
    family = [actor, *(child.pid for child in psutil.Process(actor).children(recursive=True))]
    assert len(family) >= 3
    task = asyncio.create_task(generate(engine, ask(ignore_eos=True, max_new_tokens=450)))
    await asyncio.sleep(0.1)
    await engine.close()
    with pytest.raises(EngineLost):
        await task
    assert not [pid for pid in family if psutil.pid_exists(pid)]
    assert not await engine.ready()
    await engine.close()


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
