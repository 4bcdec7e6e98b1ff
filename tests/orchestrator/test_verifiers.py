"""The verifiers as the runner sees them: verdicts, costs, and faults that are never `wrong`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from engines.protocol import EngineError, Usage
from engines.scripted import ScriptedEngine
from orchestrator.verifiers.chain import ChainedCheck, ScoredCheck
from orchestrator.verifiers.head_scorer import HeadReward
from orchestrator.verifiers.math_check import Mathematics
from orchestrator.verifiers.math_pool import MathPool
from orchestrator.verifiers.port import Judgement, Subject
from orchestrator.verifiers.reward_head import RewardHead
from orchestrator.verifiers.text_checks import CheckRefused, ExactCheck, RegexCheck, SchemaCheck
from search.extract import ThinkingMarkers


def subject(text: str) -> Subject:
    engine = ScriptedEngine(lambda _, __: (0,), eos_ids=(0,))
    return Subject("c", "what?", tuple(map(ord, "q" + text)), 1, text, engine)


class Fixed:
    """A checker and scorer that says one thing."""

    def __init__(self, name: str, judgement: Judgement | EngineError) -> None:
        self.name = name
        self._judgement = judgement
        self.asked = 0

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return 5

    async def check(self, _: Subject) -> Judgement:
        self.asked += 1
        if isinstance(self._judgement, EngineError):
            raise self._judgement
        return self._judgement

    score = check


@pytest.mark.parametrize(
    ("text", "expected", "verdict"),
    [
        ("so \\boxed{1/2}", "0.5", "right"),
        ("Answer: \u22123", "-3", "right"),
        ("Answer: 3", "-3", "wrong"),
        ("<think>Answer: 7</think>Answer: 8", "7", "wrong"),
        ("I do not know, sorry, there are many words here", "7", "wrong"),
    ],
)
async def test_case_40_41_exact_compares_normal_forms(text: str, expected: str, verdict: str) -> None:
    assert (await ExactCheck(expected, ThinkingMarkers()).check(subject(text))).verdict == verdict


async def test_a_pattern_must_match_the_answer_in_full() -> None:
    check = RegexCheck("[0-9]+", None)
    assert (await check.check(subject("Answer: 42"))).verdict == "right"
    assert (await check.check(subject("Answer: 42 apples"))).verdict == "wrong"


async def test_a_pattern_that_takes_exponential_time_is_an_error_and_stops_nobody() -> None:
    check = RegexCheck("(a|aa|aaa)+(a|aa)+b+c", None)
    begin = time.monotonic()
    slow = asyncio.create_task(check.check(subject("a" * 5000)))
    beats = 0
    while not slow.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert (await slow).verdict in ("error", "wrong")
    assert time.monotonic() - begin < 5
    assert beats >= 1


async def test_a_schema_check_reads_the_visible_text() -> None:
    check = SchemaCheck('{"type": "object", "required": ["a"]}', ThinkingMarkers())
    assert (await check.check(subject('<think>{}</think>{"a": 1}'))).verdict == "right"
    assert (await check.check(subject('{"b": 1}'))).verdict == "wrong"
    assert (await check.check(subject("not json"))).verdict == "wrong"


@pytest.mark.parametrize("schema", ["[", '{"type": 3}', '{"$ref": "x"}', '{"items": {"pattern": "a"}}'])
def test_a_schema_that_cannot_be_checked_is_refused(schema: str) -> None:
    with pytest.raises(CheckRefused) as caught:
        SchemaCheck(schema, None)
    assert caught.value.field == "schema"


async def test_a_chain_falls_back_over_errors_and_says_when_verifiers_differ() -> None:
    broken = Fixed("a", Judgement(verdict="error", tokens=2))
    right = Fixed("b", Judgement(verdict="right", tokens=3, usage=Usage(4, 1, 1)))
    wrong = Fixed("c", Judgement(verdict="wrong"))
    first = await ChainedCheck([broken, right, wrong], "fallback").check(subject("x"))
    assert (first.verdict, first.tokens, first.disagreement) == ("right", 5, False)
    assert wrong.asked == 0
    both = await ChainedCheck([broken, right, wrong], "all").check(subject("x"))
    assert (both.verdict, both.disagreement) == ("wrong", True)


async def test_a_chain_of_nothing_but_faults_is_an_error_and_never_wrong() -> None:
    lost = ScoredCheck(Fixed("a", EngineError("lost")))
    chain = ChainedCheck([lost, Fixed("b", Judgement(verdict="error"))], "all")
    assert (await chain.check(subject("x"))).verdict == "error"


async def test_a_reward_head_scores_on_an_engine_of_its_own() -> None:
    engine = ScriptedEngine(reward=lambda ids: [0.0 if ids[-1] == 9 else 100.0])
    scorer = HeadReward(RewardHead(suffix_ids=(9,)), pick=lambda: _ready(engine))
    judgement = await scorer.score(subject("abc"))
    assert judgement.score == pytest.approx(0.5)
    assert judgement.tokens == scorer.most_tokens(1, 3) == 1
    assert engine.reward_requests[0].input_ids == (*map(ord, "qabc"), 9)


async def test_a_head_that_cannot_be_read_gives_no_score() -> None:
    engine = ScriptedEngine(reward=lambda _: [float("nan")])
    judgement = await HeadReward(RewardHead(), pick=lambda: _ready(engine)).score(subject("abc"))
    assert judgement.score is None
    assert judgement.reason


async def _ready(engine: ScriptedEngine) -> Any:
    return engine


async def test_mathematics_joins_equal_answers_and_grades_them() -> None:
    pool = MathPool()
    try:
        maths = Mathematics(pool)
        assert await maths.same("\\frac{\\sqrt{2}}{2}", "1/\\sqrt{2}") is True
        assert await maths.same("\\sqrt{2}", "\\sqrt{3}") is False
        assert await maths.same("a cat", "a dog") is None
        check = maths.checker("x^2-1", None)
        assert (await check.check(subject("Answer: (x-1)(x+1)"))).verdict == "right"
        assert (await check.check(subject("Answer: x^2+1"))).verdict == "wrong"
        assert (await check.check(subject("Answer: a cat sat"))).verdict == "error"
    finally:
        await pool.close()
