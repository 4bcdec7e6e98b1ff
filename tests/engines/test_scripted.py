from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.protocol import (
    Chunk,
    EngineError,
    EngineLost,
    EngineRefused,
    Finish,
    GenerateRequest,
    RewardRequest,
    Sampling,
    ScoreRequest,
    Usage,
)
from engines.scripted import Behaviour, ScriptedEngine

EOS = 99


def count_up(ids: tuple[int, ...], seed: int | None) -> list[int]:
    start = seed or 0
    return [*range(start, start + 20), EOS]


def request(
    call_id: str, ids: tuple[int, ...] = (1, 2, 3), salt: str | None = None, **fields: Any
) -> GenerateRequest:
    return GenerateRequest(call_id, ids, Sampling(**{"max_new_tokens": 50, **fields}), cache_salt=salt)


async def collect(engine: ScriptedEngine, what: GenerateRequest) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(what)]


def tokens(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_a_generation_follows_its_script_and_its_seed() -> None:
    engine = ScriptedEngine(count_up, eos_ids=[EOS])
    chunks = await collect(engine, request("a", seed=40))
    assert tokens(chunks) == [*range(40, 60), EOS]
    assert len(chunks[0].token_ids) == 1
    assert chunks[-1].finish is Finish.STOP
    assert chunks[-1].matched_stop == EOS
    assert chunks[-1].usage == Usage(3, 0, 21)


async def test_a_generation_ends_at_max_new_tokens() -> None:
    chunks = await collect(ScriptedEngine(count_up, eos_ids=[EOS]), request("a", max_new_tokens=5))
    assert len(tokens(chunks)) == 5
    assert chunks[-1].finish is Finish.LENGTH


async def test_an_aborted_call_gives_a_last_chunk_with_its_partial_usage() -> None:
    engine = ScriptedEngine(count_up, behave=lambda *_: Behaviour(hang_after=9), eos_ids=[EOS])
    chunks = []
    async for chunk in engine.generate(request("a")):
        chunks.append(chunk)
        if len(tokens(chunks)) == 9 and chunk.finish is None:
            await engine.abort(["a", "unknown"])
    assert chunks[-1].finish is Finish.ABORT
    assert chunks[-1].usage == Usage(3, 0, 9)
    assert engine.aborts == ["a", "unknown"]
    assert engine.running == ()


async def test_prefixes_are_shared_within_a_salt_alone() -> None:
    engine = ScriptedEngine(count_up, eos_ids=[EOS])
    await collect(engine, request("a", (1, 2, 3), "x"))
    again = await collect(engine, request("b", (1, 2, 3, 0, 1, 2), "x"))
    other = await collect(engine, request("c", (1, 2, 3, 0, 1, 2), "y"))
    assert again[-1].usage == Usage(6, 5, 21)
    assert other[-1].usage == Usage(6, 0, 21)


async def test_a_lost_engine_fails_its_calls_and_comes_back() -> None:
    engine = ScriptedEngine(count_up, behave=lambda *_: Behaviour(hang_after=1), eos_ids=[EOS])
    stream = engine.generate(request("a"))
    await anext(stream)
    engine.lose()
    with pytest.raises(EngineLost):
        await anext(stream)
    assert not await engine.ready()
    with pytest.raises(EngineLost):
        await collect(engine, request("b"))
    engine.recover()
    assert await engine.ready()


async def test_failures_are_scripted_per_call() -> None:
    plan = [Behaviour(lost_after=4), Behaviour(refuse="seed"), Behaviour()]
    engine = ScriptedEngine(count_up, behave=lambda _, number: plan[number], eos_ids=[EOS])
    got: list[int] = []
    with pytest.raises(EngineLost):
        async for chunk in engine.generate(request("a")):
            got += chunk.token_ids
    assert len(got) == 4
    with pytest.raises(EngineRefused) as refused:
        await collect(engine, request("b"))
    assert refused.value.field == "seed"
    assert (await collect(engine, request("c")))[-1].finish is Finish.STOP


async def test_time_passes_only_through_the_given_pause() -> None:
    gate = asyncio.Event()
    asked: list[float] = []

    async def pause(seconds: float) -> None:
        asked.append(seconds)
        await gate.wait()

    engine = ScriptedEngine(count_up, behave=lambda *_: Behaviour(delay_s=3.0), pause=pause, eos_ids=[EOS])
    task = asyncio.create_task(collect(engine, request("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    assert (await task)[-1].finish is Finish.STOP
    assert set(asked) == {3.0}


async def test_scores_are_normalised_over_the_labels() -> None:
    engine = ScriptedEngine(count_up, score=lambda ids, labels: [3.0, 1.0])
    scores = await engine.score(ScoreRequest("s", (1, 2), (7, 8)))
    assert scores.probabilities == (0.75, 0.25)
    assert scores.usage == Usage(2, 0, 1)


def summed(ids: tuple[int, ...]) -> list[float]:
    return [float(sum(ids))]


async def test_rewards_follow_their_script_and_share_prefixes_within_a_salt() -> None:
    engine = ScriptedEngine(reward=summed)
    first = await engine.reward(RewardRequest("a", (1, 2, 3), "x"))
    again = await engine.reward(RewardRequest("b", (1, 2, 3, 4), "x"))
    other = await engine.reward(RewardRequest("c", (1, 2, 3, 4), "y"))
    assert (first.value, again.value) == (6.0, 10.0)
    assert (first.usage, again.usage, other.usage) == (Usage(3, 0, 0), Usage(4, 3, 0), Usage(4, 0, 0))
    assert [request.call_id for request in engine.reward_requests] == ["a", "b", "c"]
    assert (await engine.info()).role == "reward"


async def test_case_33_rewards_that_overlap_belong_to_their_own_prompts() -> None:
    gate = asyncio.Event()

    async def pause(_: float) -> None:
        await gate.wait()

    engine = ScriptedEngine(reward=summed, pause=pause)
    requests = [RewardRequest(f"r{n}", tuple(range(n + 1))) for n in range(6)]
    tasks = [asyncio.create_task(engine.reward(request)) for request in requests]
    await asyncio.sleep(0)
    assert len(engine.running) == 6
    gate.set()
    assert [reward.value for reward in await asyncio.gather(*tasks)] == [0.0, 1.0, 3.0, 6.0, 10.0, 15.0]


async def test_an_engine_refuses_the_calls_of_the_other_role() -> None:
    head, policy = ScriptedEngine(reward=summed), ScriptedEngine(count_up)
    with pytest.raises(EngineRefused) as refused:
        await head.score(ScoreRequest("s", (1, 2), (7, 8)))
    assert refused.value.field == "role"
    with pytest.raises(EngineRefused) as refused:
        await collect(head, request("g"))
    assert refused.value.field == "role"
    with pytest.raises(EngineRefused) as refused:
        await policy.reward(RewardRequest("r", (1, 2)))
    assert refused.value.field == "role"


async def test_a_reward_fails_as_scripted_and_when_it_is_aborted() -> None:
    plan = [Behaviour(lost_after=0), Behaviour(refuse="input_ids"), Behaviour(hang_after=0)]
    engine = ScriptedEngine(reward=summed, behave=lambda _, number: plan[number])
    with pytest.raises(EngineLost):
        await engine.reward(RewardRequest("a", (1,)))
    with pytest.raises(EngineRefused):
        await engine.reward(RewardRequest("b", (1,)))
    task = asyncio.create_task(engine.reward(RewardRequest("c", (1,))))
    await asyncio.sleep(0)
    await engine.abort(["c"])
    with pytest.raises(EngineError, match="aborted"):
        await task
    assert engine.running == ()


def test_a_scripted_engine_has_just_one_role() -> None:
    with pytest.raises(ValueError, match="either a script or rewards"):
        ScriptedEngine()
    with pytest.raises(ValueError, match="either a script or rewards"):
        ScriptedEngine(count_up, reward=summed)
