"""A real reward head on an SGLang engine of its own, beside the model that it was derived from."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
import ray

from engines.models import prepare
from engines.protocol import (
    EngineError,
    EngineLost,
    EngineRefused,
    GenerateRequest,
    Reward,
    RewardRequest,
    Sampling,
    ScoreRequest,
    Usage,
)
from engines.ray_engine import NAMESPACE, RayEngine, start_engine
from engines.spec import EngineSpec
from engines.tokenizer import ModelTokenizer
from orchestrator.verifiers.judge import PointwiseJudge
from orchestrator.verifiers.judge_form import JudgeForm
from orchestrator.verifiers.judge_prompt import Answer, Ask
from orchestrator.verifiers.reward_head import RewardHead, make_reward_head

RESTART_S = 180
CHUNK = 384

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

PROBLEMS = {
    "47+38": ("47+38=85\nAnswer: 85", "47+38=84", "47+38=85\nAnswer: 58"),
    "(61-17)*4": ("61-17=44\n44*4=176\nAnswer: 176", "61-17=54", "61-17=44\n44*4=166"),
    "(9*8-7)*6%500": ("9*8=72\n72-7=65\n65*6=390\n390%500=390\nAnswer: 390", "9*8=72\n72-7=66"),
    "100-64+3": ("100-64=36\n36+3=39\nAnswer: 39", "100-64=46", ""),
    "((83-44)*7+12)%90": ("83-44=39\n39*7=273\n273+12=285\n285%90=15\nAnswer: 15", "83-44=39\n39*7=283"),
    "5*5*5": ("5*5=25\n25*5=125\nAnswer: 125", "5*5=20\n20*5=100\nAnswer: 100", "5*5=25"),
}
"""Prefixes of solutions by problem, the right one first; 16 of them."""


@dataclass(frozen=True)
class Pair:
    """The reward head, and the model that scores by label tokens."""

    head: RayEngine
    policy: RayEngine
    tokenizer: ModelTokenizer
    form: RewardHead


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, namespace=NAMESPACE)
    yield
    if started:
        ray.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    models = tmp_path_factory.mktemp("models")
    files = prepare("tiny-reasoner-prm", models)
    policy = prepare("tiny-reasoner", models)
    assert files.reward_head is not None
    tokenizer = ModelTokenizer(policy.path)
    form = make_reward_head(files.reward_head, ModelTokenizer(files.path), tokenizer)
    base = EngineSpec("policy", str(policy.path), dtype="float32", max_total_tokens=8000)
    # Chunks so small that the longest prompts are prefilled in two.
    chunks = {"chunked_prefill_size": CHUNK}
    head = replace(base, name="prm", model_path=str(files.path), role="reward", engine_args=chunks)
    engines = await asyncio.gather(start_engine(head), start_engine(base))
    yield Pair(*engines, tokenizer, form)
    for engine in engines:
        await engine.close()


class Judge:
    """Puts prefixes of solutions to both, with fresh call ids and, if none is given, a fresh salt."""

    numbers = count()

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def path(self, question: str, lines: str) -> tuple[tuple[int, ...], int]:
        prompt = self.pair.tokenizer.encode_chat([{"role": "user", "content": f"Compute {question}."}])
        return prompt + self.pair.tokenizer.encode(lines), len(prompt)

    def request(self, question: str, lines: str, salt: str | None = None) -> RewardRequest:
        number = next(self.numbers)
        ids = self.pair.form.input_ids(*self.path(question, lines))
        return RewardRequest(f"reward-{number}", ids, salt or f"salt-{number}")

    async def reward(self, question: str, lines: str, salt: str | None = None) -> Reward:
        return await self.pair.head.reward(self.request(question, lines, salt))

    async def score(self, question: str, lines: str) -> float:
        return self.pair.form.score((await self.reward(question, lines)).outputs)

    async def by_labels(self, question: str, lines: str) -> float:
        labels = tuple(self.pair.tokenizer.token_id(label) for label in "+-")
        ids = self.pair.form.input_ids(*self.path(question, lines))
        scores = await self.pair.policy.score(ScoreRequest(f"score-{next(self.numbers)}", ids, labels))
        return scores.probabilities[0]


@pytest.fixture(scope="module")
def judge(pair: Pair) -> Judge:
    return Judge(pair)


def prefixes() -> list[tuple[str, str]]:
    return [(question, lines) for question, all_lines in PROBLEMS.items() for lines in all_lines]


async def test_the_engine_tells_its_role_and_takes_no_other_calls(pair: Pair, judge: Judge) -> None:
    head, policy = await pair.head.info(), await pair.policy.info()
    assert (head.role, policy.role) == ("reward", "generate")
    ids = judge.path("1+1", "")[0]
    with pytest.raises(EngineRefused) as refused:
        await pair.head.score(ScoreRequest("s", ids, (1, 2)))
    assert refused.value.field == "role"
    with pytest.raises(EngineRefused) as refused:
        await anext(pair.head.generate(GenerateRequest("g", ids, Sampling(1))))
    assert refused.value.field == "role"
    with pytest.raises(EngineRefused) as refused:
        await pair.policy.reward(RewardRequest("r", ids))
    assert refused.value.field == "role"


async def test_a_reward_head_scores_as_its_base_does_by_label_tokens(judge: Judge) -> None:
    for question, lines in prefixes():
        score, expected = await judge.score(question, lines), await judge.by_labels(question, lines)
        assert score == pytest.approx(expected, abs=1e-4), (question, lines)
    assert await judge.score("47+38", "47+38=85") > 0.9 > 0.5 > await judge.score("47+38", "47+38=84")


async def test_case_32_a_trajectory_scores_the_same_alone_and_among_others_of_other_lengths(
    judge: Judge,
) -> None:
    everything = prefixes()
    alone = [await judge.score(*prefix) for prefix in everything]
    together = await asyncio.gather(*[judge.score(*prefix) for prefix in everything])
    assert len(set(map(len, (lines for _, lines in everything)))) > 8
    assert list(together) == pytest.approx(alone, abs=1e-5)


async def test_case_32_it_scores_the_same_when_its_prefix_is_cached_and_when_it_is_not(
    judge: Judge,
) -> None:
    for question, lines in prefixes():
        fresh = await judge.reward(question, lines, f"both-{question}-{lines}")
        cached = await judge.reward(question, lines, f"both-{question}-{lines}")
        assert fresh.usage.cached_tokens == 0 < cached.usage.cached_tokens
        assert cached.value == pytest.approx(fresh.value, abs=1e-4)


async def test_case_33_in_a_batch_of_different_problems_each_score_belongs_to_its_own(judge: Judge) -> None:
    questions = list(PROBLEMS)
    lines = [PROBLEMS[question][0] for question in questions]
    # Each problem's solution under each problem: right on the diagonal alone.
    grid = await asyncio.gather(*[judge.score(q, line) for q in questions for line in lines])
    expected = [await judge.by_labels(q, line) for q in questions for line in lines]
    assert grid == pytest.approx(expected, abs=1e-4)
    for row, question in enumerate(questions):
        scores = grid[row * len(lines) : (row + 1) * len(lines)]
        assert max(range(len(lines)), key=scores.__getitem__) == row, question


async def test_a_prefix_is_cached_for_those_that_extend_it_and_nothing_is_decoded(judge: Judge) -> None:
    question, lines = "(61-17)*4", "61-17=44\n44*4=176"
    first = judge.request(question, lines, "grown")
    assert (await judge.pair.head.reward(first)).usage == Usage(len(first.input_ids), 0, 0)
    again = judge.request(question, lines, "grown")
    assert (await judge.pair.head.reward(again)).usage.cached_tokens == len(again.input_ids) - 1
    longer = judge.request(question, lines + "\nAnswer: 176", "grown")
    path = len(judge.path(question, lines)[0])
    assert (await judge.pair.head.reward(longer)).usage.cached_tokens == path


async def test_case_63_rewards_share_no_prefix_across_salts(judge: Judge) -> None:
    async def cached(salt: str) -> int:
        return (await judge.reward("100-64+3", "100-64=36", salt)).usage.cached_tokens

    assert await cached("tenant-a") == 0
    assert await cached("tenant-b") == 0
    assert await cached("tenant-a") > 0


async def test_a_prompt_longer_than_a_chunk_has_the_same_score(judge: Judge) -> None:
    lines = "\n".join(f"{n}+1={n + 1}" for n in range(10, 60))
    request = judge.request("10+1", lines)
    assert len(request.input_ids) > CHUNK
    assert await judge.score("10+1", lines) == pytest.approx(await judge.by_labels("10+1", lines), abs=1e-4)


@pytest.mark.parametrize("ids", [(), (9999,), (7,) * 512], ids=["none", "unknown", "too long"])
async def test_a_prompt_that_cannot_be_read_is_refused_by_its_name(pair: Pair, ids: tuple[int, ...]) -> None:
    with pytest.raises(EngineRefused) as refused:
        await pair.head.reward(RewardRequest("bad", ids))
    assert refused.value.field == "input_ids"


async def test_the_longest_prompt_that_the_engine_tells_of_can_be_read(pair: Pair) -> None:
    longest = (await pair.head.info()).context_tokens
    assert (await pair.head.reward(RewardRequest("l", (7,) * longest))).usage.prompt_tokens == longest
    with pytest.raises(EngineRefused):
        await pair.head.reward(RewardRequest("l", (7,) * (longest + 1)))


async def test_aborted_rewards_end_soon_and_leave_nothing_running(pair: Pair, judge: Judge) -> None:
    lines = "\n".join(f"{n}+1={n + 1}" for n in range(10, 50))
    requests = [judge.request(f"{n}+1", lines) for n in range(80)]
    tasks = [asyncio.create_task(pair.head.reward(request)) for request in requests]
    await asyncio.sleep(0.1)
    await pair.head.abort([request.call_id for request in requests])
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert all(isinstance(r, Reward) or type(r) is EngineError for r in results)
    assert any(isinstance(r, EngineError) for r in results)
    load = await until_idle(pair.head, 5)
    assert load < 5
    assert await judge.score("47+38", "47+38=85") > 0.9


async def test_all_judgements_of_one_question_after_the_first_find_its_part_cached(pair: Pair) -> None:
    form = JudgeForm(template="Compute {question}.\n{answer}\nGrade", max_answer_tokens=100)
    grader = PointwiseJudge(pair.tokenizer, form, (await pair.policy.info()).context_tokens - 6)
    case = grader.open("47+38-12+55-3")
    asks = [case.ask(Answer(text)) for text in ("Answer: 125", "Answer: 124", "7", "Answer: 125\n")]
    results = []
    for number, ask in enumerate(asks):
        assert isinstance(ask, Ask)
        request = ScoreRequest(f"grade-{number}", ask.input_ids, ask.label_ids, "judge")
        results.append(await pair.policy.score(request))
    assert results[0].usage.cached_tokens == 0
    for result in results[1:]:
        assert result.usage.cached_tokens >= case.shared_tokens
    scores = [grader.read(result.probabilities) for result in results]
    assert scores[3] == pytest.approx(scores[0], abs=1e-4)
    assert all(0.0 < score < 1.0 for score in scores)


async def test_a_model_in_the_wrong_role_does_not_start(local_ray: None, tmp_path: Path) -> None:
    head, policy = prepare("tiny-reasoner-prm", tmp_path), prepare("tiny-reasoner", tmp_path)
    with pytest.raises(EngineError, match="no reward head"):
        await start_engine(EngineSpec("wrong", str(policy.path), role="reward", max_total_tokens=1000))
    with pytest.raises(EngineError, match="role 'reward'"):
        await start_engine(EngineSpec("wrong", str(head.path), max_total_tokens=1000))


async def test_the_death_of_the_engine_is_noticed_and_mended(pair: Pair, judge: Judge) -> None:
    workers = (await pair.head.process_ids())[1:]
    lines = "\n".join(f"{n}+1={n + 1}" for n in range(10, 50))
    tasks = [asyncio.create_task(judge.reward(f"{n}+1", lines)) for n in range(60)]
    await asyncio.sleep(0.05)
    os.kill(workers[0], signal.SIGKILL)
    started = time.monotonic()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert time.monotonic() - started < 3
    assert any(isinstance(r, EngineLost) for r in results)
    assert all(isinstance(r, Reward | EngineLost) for r in results)
    assert not await pair.head.ready()
    await until_ready(pair.head, RESTART_S)
    assert await judge.score("47+38", "47+38=85") > 0.9


async def until_idle(engine: RayEngine, seconds: float) -> float:
    started = time.monotonic()
    while (load := await engine.load()).running or load.queued:
        assert time.monotonic() - started < seconds, "still running"
        await asyncio.sleep(0.02)
    return time.monotonic() - started


async def until_ready(engine: RayEngine, seconds: float) -> None:
    started = time.monotonic()
    while not await engine.ready():
        assert time.monotonic() - started < seconds, "not ready again"
        await asyncio.sleep(0.05)
