"""Refine: critique and revision in turns of one conversation."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from search.contract import Candidate, Check, Costs, Generate, Room, Score
from search.ground import Ground, Phrase, Turn
from search.nesting import Stage
from search.refine import CRITIQUE, REVISE, Refine, RefineParams
from search.registry import TECHNIQUES, nest
from search.sample import SampleLimits
from tests.search.drive import LIMITS, PHRASES, PROMPT, Script, World, is_turn, says
from tests.search.think_world import MARKERS, THINK_PHRASES, ThinkWorld

COSTS = Costs(score_tokens=2, check_tokens=3)
PROSE = Script(("there ", "is ", "a mistake in the second step of it all, ", "I think"))


def refine(limits: SampleLimits = LIMITS, **params: Any) -> Refine:
    return Refine(RefineParams(**params), Ground.of(PROMPT, limits, COSTS, 7, PHRASES), nest)


def run(search: Refine, *scripts: Script, **fields: Any) -> World:
    world = World(scripts, costs=COSTS, **fields)
    world.run(search)
    return world


def best_of(search: Refine) -> Candidate:
    best = search.best()
    assert best is not None
    return best


def fates(search: Refine) -> list[str]:
    return [b.fate for b in search.branches()]


def test_a_revision_replaces_the_answer_and_its_text_is_the_last_turn_alone() -> None:
    search = refine(rounds=1)
    run(search, says("1"), PROSE, says("2"))
    best = best_of(search)
    assert (best.answer, search.stop_reason) == ("2", "all_done")
    assert is_turn(search, best.begin)
    assert search.tree.path_text(best.node, best.begin) == "".join(says("2").pieces)
    assert fates(search) == ["expanded", "expanded", "chosen"]
    assert sum(b.tokens for b in search.branches()) == search.tree.generated_tokens


def test_the_turns_are_on_the_path_and_paid_for_once() -> None:
    search = refine(rounds=2)
    world = run(search, says("1"), PROSE, says("2"), PROSE, says("3"))
    given = [c.given_tokens for c in world.asked if isinstance(c, Generate)]
    assert given == [0, 3, 4, 3, 4]
    assert search.tree.given_tokens == 14
    turns = [n.token_ids for n in search.tree if n.given]
    assert turns == [[50, 51, 52], [50, 53, 54, 55]] * 2
    path = search.tree.path_ids(best_of(search).node)
    assert [t for t in path if 50 <= t <= 55] == [50, 51, 52, 50, 53, 54, 55] * 2


def test_an_end_of_turn_that_the_model_wrote_is_not_written_twice() -> None:
    phrases = {CRITIQUE: Phrase((105, 51)), REVISE: Phrase((105, 53))}
    search = Refine(RefineParams(rounds=1), Ground.of(PROMPT, LIMITS, COSTS, 7, phrases), nest)
    # The tokens of the first script are 100 to 105, and the last of them ends its turn.
    world = run(search, says("1", 6), PROSE, says("2"))
    assert [c.given_tokens for c in world.asked if isinstance(c, Generate)] == [0, 1, 2]
    assert [n.token_ids for n in search.tree if n.given] == [[51], [105, 53]]


@pytest.mark.parametrize(
    ("answers", "reason"), [("11", "fixed_point"), ("122", "fixed_point"), ("121", "cycle")]
)
def test_it_ends_when_an_answer_comes_again(answers: str, reason: str) -> None:
    search = refine(rounds=5)
    scripts = [s for a in answers for s in (says(a), PROSE)]
    run(search, *scripts)
    assert (best_of(search).answer, search.stop_reason) == (answers[-1], reason)
    assert len(search.branches()) == 2 * len(answers) - 1


@pytest.mark.parametrize(("verdicts", "answer"), [(("right",), "0"), (("wrong", "right"), "1")])
def test_it_ends_at_an_answer_that_a_check_finds_right(verdicts: tuple[Any, ...], answer: str) -> None:
    search = refine(rounds=3, check=True)
    scripts = [
        s for i, v in enumerate(verdicts) for s in (dataclasses.replace(says(str(i)), verdict=v), PROSE)
    ]
    world = run(search, *scripts)
    assert (best_of(search).answer, search.stop_reason) == (answer, "verified")
    versions = [c for c in world.asked if isinstance(c, Generate)][::2]
    checks = [c for c in world.asked if isinstance(c, Check)]
    assert [(c.begin, c.node) for c in checks] == [(v.parent, v.node) for v in versions]


def test_a_version_that_a_check_found_wrong_stands_behind_one_that_it_could_not_judge() -> None:
    search = refine(rounds=1, check=True)
    run(search, Script(says("1").pieces, verdict="error"), PROSE, Script(says("2").pieces, verdict="wrong"))
    assert best_of(search).answer == "1"
    assert fates(search) == ["chosen", "pruned", "wrong"]


def test_the_best_scored_version_wins_and_no_better_one_ends_it() -> None:
    search = refine(rounds=5, accept="scored")
    world = run(search, says("1", score=0.4), PROSE, says("2", score=0.8), PROSE, says("3", score=0.6))
    best = best_of(search)
    assert (best.answer, best.score, search.stop_reason) == ("2", 0.8, "no_better")
    assert sum(isinstance(c, Score) for c in world.asked) == 3
    assert fates(search) == ["expanded", "expanded", "chosen", "pruned", "outscored"]


def test_a_version_whose_score_is_lost_does_not_win_over_a_scored_one() -> None:
    search = refine(rounds=1, accept="scored")
    run(search, says("1", score=0.1), PROSE, Script(says("2").pieces, score_fails=True))
    assert best_of(search).answer == "1"


def test_a_score_of_the_inner_search_is_not_asked_for_again() -> None:
    stage = Stage("best_of_n", {"n": 2, "width": 2, "aggregate": "max"})
    search = refine(first=stage, revise=stage, rounds=1, accept="scored")
    versions = [says("1", score=0.3), says("2", score=0.5), PROSE, says("3", score=0.7), says("4", score=0.9)]
    world = run(search, *versions)
    assert (best_of(search).answer, best_of(search).score) == ("4", 0.9)
    assert sum(isinstance(c, Score) for c in world.asked) == 4


def test_over_a_vote_the_majority_is_revised() -> None:
    vote = Stage("self_consistency", {"n": 3, "width": 3, "stop": "none"})
    search = refine(first=vote, rounds=1)
    run(search, says("1"), says("2"), says("2"), PROSE, says("7"))
    best = best_of(search)
    assert best.answer == "7"
    path = search.tree.path(best.node)
    assert search.branches()[1].nodes[-1] in path
    assert sorted(fates(search)) == ["chosen", "expanded", "expanded", "outscored", "outvoted"]


def test_a_revision_without_an_answer_leaves_the_one_before_it() -> None:
    search = refine(rounds=1)
    run(search, says("1"), PROSE, PROSE)
    assert best_of(search).answer == "1"
    assert fates(search) == ["chosen", "pruned", "no_answer"]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_turn_that_is_lost_ends_it_with_the_answer_so_far(lost: int) -> None:
    none = Stage("single", {"max_retries": 0})
    search = refine(rounds=2, revise=none, max_retries=0)
    scripts = [says("1"), PROSE, says("2")]
    scripts[lost] = Script(("a ",), fails_after=1)
    run(search, *scripts)
    assert best_of(search).answer == "1"
    assert search.stop_reason == ("no_critique" if lost == 1 else "all_failed")


def test_a_critique_that_is_lost_is_drawn_again() -> None:
    search = refine(rounds=1)
    run(search, says("1"), Script(("a ",), fails_after=1), PROSE, says("2"))
    assert best_of(search).answer == "2"
    assert fates(search) == ["expanded", "failed", "expanded", "chosen"]


def test_a_first_answer_that_cannot_be_had_ends_it() -> None:
    search = refine(first=Stage("single", {"max_retries": 0}))
    run(search, Script(("a ",), fails_after=0))
    assert search.stop_reason == "all_failed"
    assert search.best() is None


def test_a_critique_that_is_cut_at_its_limit_is_followed_all_the_same() -> None:
    search = refine(rounds=1)
    run(search, says("1"), Script(("on and on ",) * 500), says("2"))
    assert best_of(search).answer == "2"
    assert fates(search) == ["expanded", "truncated", "chosen"]


def test_a_context_too_full_for_another_round_ends_it_with_the_best_so_far() -> None:
    limits = dataclasses.replace(LIMITS, context_tokens=len(PROMPT) + 20 + 7 + 2 * 64 - 1)
    search = refine(limits, rounds=3)
    run(search, says("1", 20))
    assert (best_of(search).answer, search.stop_reason) == ("1", "context_full")
    longer = dataclasses.replace(limits, context_tokens=limits.context_tokens + 1)
    search = refine(longer, rounds=3)
    world = run(search, says("1", 20), Script(("on and on ",) * 500), says("2"))
    assert best_of(search).answer == "2"
    # The critique leaves the revision its tokens.
    limits_asked = [c.max_new_tokens for c in world.asked if isinstance(c, Generate)]
    assert limits_asked == [100, 64, 64]


def test_a_critique_is_free_text_where_the_answer_is_constrained() -> None:
    limits = dataclasses.replace(LIMITS, whole=True, json_answer=True)
    search = refine(limits, rounds=1)
    value = Script(('{"a": ', "1", "}"))
    world = run(search, value, PROSE, Script(('{"a": ', "2", "}")))
    assert [c.constrained for c in world.asked if isinstance(c, Generate)] == [True, False, True]
    assert best_of(search).answer == '{"a": 2}'


def test_nothing_of_a_turn_remains_where_there_is_no_room_for_it() -> None:
    search = refine(rounds=1)
    world = World([says("1"), PROSE, says("2")], costs=COSTS)
    world.run(search, until=lambda: len(search.branches()) == 1 and search.branches()[0].fate == "chosen")
    nodes, live = len(search.tree), search.tree.live_tokens
    for room in (Room(4, 3, 1000), Room(4, 1000, 9), Room(0, 1000, 1000)):
        assert search.ask(room) == []
        assert (len(search.tree), search.tree.live_tokens, search.tree.given_tokens) == (nodes, live, 0)
    search.release()
    for room in (Room(4, 3, 1000), Room(4, 1000, 9), Room(0, 1000, 1000)):
        assert search.ask(room) == []
        assert (len(search.tree), search.tree.live_tokens) == (nodes, 0)
    assert len(search.ask(Room(4, 1000, 1000))) == 1


@pytest.mark.parametrize("seed", range(6))
def test_under_a_tight_kv_room_with_releases_it_still_ends(seed: int) -> None:
    vote = Stage("self_consistency", {"n": 3, "width": 3, "stop": "none"})
    search = refine(first=vote, revise=vote, rounds=2, accept="scored", check=True)
    answers = [Script(says(str(i % 4), score=i / 20).pieces, i / 20, verdict="wrong") for i in range(3)]
    scripts = [*answers, PROSE, *answers[::-1], PROSE, *answers]
    run(
        search,
        *scripts,
        kv_tokens=len(PROMPT) + 60,
        rng=random.Random(seed),
        squeeze=True,
        late=True,
        releases=0.3,
    )
    assert search.finished
    assert search.tree.live_tokens in (0, len(PROMPT))
    assert best_of(search).answer is not None


def test_every_turn_thinks_within_the_budget_of_its_own_stage() -> None:
    limits = SampleLimits(300, 1000, MARKERS)
    params = RefineParams(revise=Stage("single", {"think_tokens": 4}), rounds=1)
    search = Refine(params, Ground.of(PROMPT, limits, COSTS, 7, THINK_PHRASES), nest)
    world = ThinkWorld([], thoughts=20)
    world.run(search)
    assert search.stop_reason == "fixed_point"
    texts = ["".join(search.tree[n].text for n in b.nodes) for b in search.branches()]
    free = "<think>" + "hm " * 20 + "</think>so \\boxed{7}"
    assert texts == [free, free, "<think>hm hm hm \n</think>so \\boxed{7}"]
    best = best_of(search)
    assert search.tree.path_text(best.node, best.begin) == texts[2]


def test_without_its_turns_it_is_refused() -> None:
    with pytest.raises(ValueError, match="refine needs the phrase 'critique'"):
        Refine(RefineParams(), Ground.of(PROMPT, LIMITS, COSTS, 7), nest)


def test_its_turns_needs_and_tokens_are_told() -> None:
    technique = TECHNIQUES["refine"]
    params = RefineParams(
        first=Stage("single", {"max_retries": 0}), rounds=2, accept="scored", check=True, max_retries=1
    )
    assert technique.needs(params) == {"score", "check"}
    phrases = technique.phrases(params)
    assert set(phrases) == {CRITIQUE, REVISE}
    assert all(isinstance(p, Turn) and p.text for p in phrases.values())
    a_round = 3 + 4 + 2 * 100 + 3 * 100 + 5
    assert technique.most_tokens(params, LIMITS, COSTS, 5, PHRASES) == 100 + 5 + 2 * a_round


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"rounds": 0}, r"rounds must be a whole number in 1\.\.16"),
        ({"accept": "best"}, "accept must be one of last, scored"),
        ({"check": 0}, "check must be true or false"),
        ({"first": "single"}, "first must be a stage"),
        ({"max_retries": -1}, "max_retries must be"),
    ],
)
def test_bad_params_are_refused_naming_the_field(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RefineParams(**fields)
