"""Cascades: a cheap search first, a dearer one where its answer does not convince."""

from __future__ import annotations

import random
from typing import Any

import pytest

from search.cascade import Cascade, CascadeParams
from search.contract import Check, Costs, Generate, Score
from search.ground import Ground
from search.nesting import BadParam, Stage
from search.registry import TECHNIQUES, nest
from tests.search.drive import LIMITS, PHRASES, PROMPT, Script, World, says
from tests.search.steps_world import STEP_LIMITS, StepWorld

COSTS = Costs(score_tokens=2, check_tokens=3)
VOTE = Stage("self_consistency", {"n": 4, "width": 4, "stop": "none", "max_retries": 0})
LARGE = Stage("self_consistency", {"n": 8, "width": 8, "stop": "none"}, tier=1)


def cascade(*stages: Stage, **params: Any) -> Cascade:
    return Cascade(CascadeParams(stages, **params), Ground.of(PROMPT, LIMITS, COSTS, 7, PHRASES), nest)


def best_of(search: Cascade) -> tuple[str | None, float]:
    best = search.best()
    assert best is not None
    return best.answer, best.support


def fates(search: Cascade) -> list[str]:
    return [b.fate for b in search.branches()]


def test_an_answer_that_enough_samples_agree_on_is_taken_and_nothing_else_runs() -> None:
    search = cascade(VOTE, LARGE)
    world = World([says("1"), says("1"), says("1"), says("2")], costs=COSTS)
    world.run(search)
    assert best_of(search)[0] == "1"
    assert search.stop_reason == "agreed"
    assert {c.tier for c in world.asked if isinstance(c, Generate)} == {0}


def test_disagreement_escalates_to_the_next_tier_whose_answer_stands() -> None:
    search = cascade(VOTE, LARGE)
    world = World([says(str(i % 2)) for i in range(4)] + [says("7")] * 8, costs=COSTS)
    world.run(search)
    assert best_of(search) == ("7", 1.0)
    assert [c.tier for c in world.asked if isinstance(c, Generate)][:5] == [0, 0, 0, 0, 1]
    escalated = [b for b in search.branches() if b.reason.startswith("escalated: ")]
    assert len(escalated) == 2
    assert {b.fate for b in escalated} == {"outvoted"}
    assert "50% is below 75%" in escalated[0].reason
    assert fates(search).count("chosen") == 1
    assert sum(b.tokens for b in search.branches()) == search.tree.generated_tokens


def test_the_samples_of_all_stages_have_seeds_of_their_own() -> None:
    world = World([says(str(i)) for i in range(12)], costs=COSTS)
    world.run(cascade(VOTE, VOTE, VOTE))
    seeds = [c.seed for c in world.asked if isinstance(c, Generate)]
    assert len(set(seeds)) == len(seeds) == 12


def test_where_the_last_stage_has_no_answer_the_best_earlier_one_stands_with_its_support() -> None:
    search = cascade(VOTE, VOTE, Stage("single"), min_support=1.0)
    first = [says("1"), says("1"), says("1"), says("2")]
    second = [says("3"), says("3"), says("4"), says("5")]
    World([*first, *second, Script(("words ",) * 10)], costs=COSTS).run(search)
    assert best_of(search) == ("1", 0.75)
    assert fates(search).count("chosen") == 1


def test_a_stage_without_an_answer_escalates() -> None:
    search = cascade(Stage("single"), Stage("single"))
    World([Script(("words ",) * 10), says("7")], costs=COSTS).run(search)
    assert best_of(search)[0] == "7"
    assert search.branches()[0].fate == "no_answer"


def test_a_stage_whose_samples_are_all_lost_escalates() -> None:
    search = cascade(VOTE, Stage("single"))
    World([Script(("a ",), fails_after=1)] * 4 + [says("7")], costs=COSTS).run(search)
    assert best_of(search)[0] == "7"
    assert fates(search) == ["failed"] * 4 + ["chosen"]


def test_a_low_score_escalates() -> None:
    scored = Stage("best_of_n", {"n": 2, "width": 2, "aggregate": "max"})
    search = cascade(scored, Stage("single"), min_support=0.0, min_score=0.8)
    World([says("1", score=0.5), says("1", score=0.6), says("7")], costs=COSTS).run(search)
    assert best_of(search)[0] == "7"
    assert "score of 0.600 is below 0.800" in search.branches()[0].reason + search.branches()[1].reason
    assert "outscored" in fates(search)


@pytest.mark.parametrize(
    ("verdict", "answer", "reason"),
    [
        ("right", "1", "verified"),
        ("wrong", "7", "all_done"),
        ("unsure", "1", "agreed"),
        ("error", "1", "agreed"),
    ],
)
def test_a_check_decides_and_where_it_cannot_tell_agreement_does(
    verdict: Any, answer: str, reason: str
) -> None:
    search = cascade(Stage("single"), Stage("single"), check=True)
    world = World([Script(says("1").pieces, verdict=verdict), says("7")], costs=COSTS)
    world.run(search)
    assert (best_of(search)[0], search.stop_reason) == (answer, reason)
    assert sum(isinstance(c, Check) for c in world.asked) == 1
    assert verdict != "wrong" or search.branches()[0].fate == "wrong"


def test_a_lost_check_leaves_the_decision_to_agreement() -> None:
    search = cascade(Stage("single"), Stage("single"), check=True)
    World([Script(says("1").pieces, score_fails=True), says("7")], costs=COSTS).run(search)
    assert (best_of(search)[0], search.stop_reason) == ("1", "agreed")


def test_right_by_a_check_is_taken_whatever_the_support() -> None:
    search = cascade(VOTE, Stage("single"), check=True)
    World([says("1"), says("2"), says("3"), says("4")], costs=COSTS).run(search)
    assert best_of(search) == ("1", 0.25)
    assert search.stop_reason == "verified"


def test_tokens_for_the_check_are_kept_back() -> None:
    search = cascade(Stage("single"), Stage("single"), check=True)
    world = World([says("1", 20)], costs=COSTS, tokens=23)
    world.run(search)
    assert search.stop_reason == "verified"


def test_a_last_stage_of_steps_gives_its_answer() -> None:
    stages = (VOTE, Stage("beam", {"width": 2, "expand": 8}))
    ground = Ground.of(PROMPT, STEP_LIMITS, COSTS, 7)
    search = Cascade(CascadeParams(stages, min_support=1.0), ground, nest)
    world = StepWorld([], costs=COSTS, depth=3, rng=random.Random(1))
    world.run(search)
    assert best_of(search)[0] == "7"
    assert any(isinstance(c, Score) for c in world.asked)
    assert search.tree.live_tokens == len(PROMPT)


@pytest.mark.parametrize("kv", [12, 30])
def test_under_a_tight_kv_room_all_stages_finish(kv: int) -> None:
    search = cascade(VOTE, LARGE, min_support=1.0)
    world = World(
        [says(str(i % 3)) for i in range(12)],
        costs=COSTS,
        kv_tokens=len(PROMPT) + kv,
        squeeze=True,
        releases=0.3,
    )
    world.run(search)
    assert search.finished
    assert fates(search).count("chosen") == 1


def test_a_cap_that_is_reached_in_a_later_stage_keeps_the_earlier_answer() -> None:
    search = cascade(VOTE, LARGE, min_support=1.0)
    World([says("1"), says("1"), says("2"), says("3"), says("9", 500)], costs=COSTS, tokens=60).run(search)
    assert not search.finished
    assert best_of(search) == ("1", 0.5)


def test_a_stage_that_is_refused_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="think_tokens needs a model that marks its thinking"):
        cascade(VOTE, Stage("single", {"think_tokens": 5}))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"stages": (VOTE,)}, r"stages must be 2\.\.8 stages"),
        ({"stages": (VOTE,) * 9}, r"stages must be 2\.\.8 stages"),
        ({"min_support": 1.5}, r"min_support must be a number in 0\.0\.\.1\.0"),
        ({"min_score": -1}, r"min_score must be a number in"),
        ({"check": 1}, "check must be true or false"),
    ],
)
def test_bad_params_are_refused_naming_the_field(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CascadeParams(**fields)


def test_its_needs_and_tokens_are_those_of_its_stages() -> None:
    technique = TECHNIQUES["cascade"]
    params = CascadeParams((VOTE, Stage("best_of_n", {"n": 3, "max_retries": 1})), check=True)
    assert technique.needs(params) == {"score", "check"}
    assert technique.most_tokens(params, LIMITS, COSTS, len(PROMPT)) == 4 * 100 + 4 * (100 + 2) + 3
    with pytest.raises(BadParam, match=r"stages\.1\.technique"):
        technique.needs(CascadeParams((VOTE, Stage("magic"))))
