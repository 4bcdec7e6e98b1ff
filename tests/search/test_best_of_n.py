from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from search.best_of_n import BestOfN, BestOfNParams
from search.contract import Chunk, Costs, Generate, Generated, Room, Score, Scored
from search.ground import Ground
from tests.search.drive import LIMITS, PROMPT, Script, World, one_by_one, says

COSTS = Costs(score_tokens=10)
PROSE = Script(("a long text of more than one short line, ", "and no final answer in it"), score=1.0)


def run(scripts: list[Script], order: list[int] | None = None, **params: Any) -> BestOfN:
    n = len(scripts)
    search = BestOfN(BestOfNParams(n=n, **{"width": n, **params}), Ground.of(PROMPT, LIMITS, COSTS, 7))
    one_by_one(World(scripts, costs=COSTS), search, order or list(range(n)))
    assert search.finished
    return search


def answer(search: BestOfN) -> str | None:
    best = search.best()
    assert best is not None
    assert best.complete
    return best.answer


def test_max_takes_the_highest_score() -> None:
    search = run([says("1", score=0.5), says("2", score=0.9), says("1", score=0.6)], aggregate="max")
    best = search.best()
    assert best is not None
    assert (best.answer, best.score, best.tie) == ("2", 0.9, False)
    assert best.support == pytest.approx(0.9 / 2.0)
    assert [b.fate for b in search.branches()] == ["outscored", "chosen", "outscored"]


def test_weighted_adds_the_scores_of_equal_answers_and_gives_the_best_of_them() -> None:
    search = run([says("1", score=0.5), says("2", score=0.9), says("1.0", score=0.6)])
    best = search.best()
    assert best is not None
    assert (best.answer, best.key, best.score) == ("1.0", "1", 0.6)
    assert best.support == pytest.approx(1.1 / 2.0)
    assert [b.fate for b in search.branches()] == ["agreed", "outscored", "chosen"]


@pytest.mark.parametrize("aggregate", ["weighted", "max"])
def test_a_tie_goes_to_the_earliest_sample_and_is_reported(aggregate: str) -> None:
    for order in ([0, 1], [1, 0]):
        search = run([says("1"), says("2")], order, aggregate=aggregate)
        best = search.best()
        assert best is not None
        assert (best.answer, best.tie) == ("1", True)


@pytest.mark.parametrize("aggregate", ["weighted", "max"])
def test_a_sample_without_an_answer_ranks_below_one_with(aggregate: str) -> None:
    assert answer(run([PROSE, says("1", score=0.0)], aggregate=aggregate)) == "1"


def test_among_texts_without_answers_the_score_decides() -> None:
    better = dataclasses.replace(PROSE, pieces=(*PROSE.pieces, " at all"))
    search = run([dataclasses.replace(PROSE, score=0.2), better])
    best = search.best()
    assert best is not None
    assert best.answer is None
    assert best.node == search.branches()[1].nodes[-1]


@pytest.mark.parametrize("aggregate", ["weighted", "max"])
def test_case_45_empty_text_is_not_scored_and_never_wins(aggregate: str) -> None:
    empty = Script(("", " "), score=1.0)
    search = run([empty, empty, says("1", score=0.1)], aggregate=aggregate)
    assert answer(search) == "1"
    assert [b.score for b in search.branches()] == [None, None, 0.1]


@pytest.mark.parametrize("aggregate", ["weighted", "max"])
def test_a_failing_verifier_never_passes_for_wrong(aggregate: str) -> None:
    unscored = dataclasses.replace(says("1"), score_fails=True)
    assert answer(run([unscored, unscored, says("2", score=0.0)], aggregate=aggregate)) == "2"
    search = run([unscored, says("2"), unscored], aggregate=aggregate)
    assert [b.answer for b in search.branches()] == ["1", "2", "1"]
    assert "verifier lost" in search.branches()[0].reason


@pytest.mark.parametrize("aggregate", ["weighted", "max"])
def test_when_nothing_could_be_scored_the_majority_wins(aggregate: str) -> None:
    scripts = [dataclasses.replace(says(a), score_fails=True) for a in ("2", "1", "1")]
    search = run(scripts, aggregate=aggregate)
    best = search.best()
    assert best is not None
    assert (best.answer, best.score, best.support) == ("1", None, 2 / 3)


@pytest.mark.parametrize("score", [float("nan"), -0.1, 1.1, float("inf")])
def test_a_score_outside_its_range_counts_as_a_failed_score(score: float) -> None:
    search = run([says("1", score=score), says("2", score=0.1)])
    assert answer(search) == "2"
    assert search.branches()[0].score is None


def test_the_score_of_a_sample_is_asked_once_for_its_own_path() -> None:
    scripts = [says(str(i), length=2 + i, score=i / 10) for i in range(6)]
    search = BestOfN(BestOfNParams(n=6, width=3), Ground.of(PROMPT, LIMITS, COSTS, 7))
    world = World(scripts, costs=COSTS)
    world.run(search)
    assert sorted(c.node for c in world.asked if isinstance(c, Score)) == sorted(
        b.nodes[-1] for b in search.branches()
    )
    assert [b.score for b in search.branches()] == [i / 10 for i in range(6)]
    assert world.charged == sum(2 + i for i in range(6)) + 6 * COSTS.score_tokens


def test_case_28_a_complete_sample_beats_longer_ones_cut_short() -> None:
    search = run([says("1", 2, score=0.0), says("2", 500), says("3", 500)])
    assert answer(search) == "1"


def test_a_late_score_is_ignored() -> None:
    search = run([says("1"), says("2", score=0.9)])
    before = search.best()
    assert search.tell(Scored(1, 1.0)) == []
    assert search.tell(Scored(99, 1.0)) == []
    assert search.best() == before


def test_gain_is_positive_until_the_end() -> None:
    search = BestOfN(BestOfNParams(n=3, width=1), Ground.of(PROMPT, LIMITS, COSTS, 7))
    world = World([says("1")], costs=COSTS)
    before = search.gain()
    world.run(search, until=lambda: len(world.events) > 8)
    assert before > 0
    World([says("1")], costs=COSTS)
    world.run(search)
    assert search.gain() == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("width", -1),
        ("aggregate", "mean"),
        ("max_retries", 5000),
        ("by", "taste"),
        ("reduction", "sum"),
        ("max_depth", 0),
        ("finalists", 0),
        ("finalists", 33),
    ],
)
def test_params_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        BestOfNParams(**{field: value})  # type: ignore[arg-type]


def test_scores_wait_for_their_batch_while_samples_run_and_no_longer() -> None:
    search = BestOfN(BestOfNParams(n=3, width=3, score_batch=3), Ground.of(PROMPT, LIMITS, COSTS, 7))
    ample = Room(slots=64, tokens=100_000, kv_tokens=100_000)
    (first,) = search.ask(ample)
    search.tell(Chunk(first.id, (7,), "Answer: 7"))
    others = [c for c in search.ask(ample) if isinstance(c, Generate)]
    search.tell(Generated(first.id, "stop"))
    assert search.ask(ample) == []
    for token, call in enumerate(others):
        search.tell(Chunk(call.id, (token,), "Answer: 7"))
        search.tell(Generated(call.id, "stop"))
    assert [type(c) for c in search.ask(ample)] == [Score] * 3


def test_samples_of_the_very_same_tokens_are_scored_once_and_share_the_score() -> None:
    same, other = says("1", score=0.4), says("2", score=0.7)
    search = BestOfN(BestOfNParams(n=5, width=5), Ground.of(PROMPT, LIMITS, COSTS, 7))
    world = World([same, other, same, same, other], costs=COSTS)
    one_by_one(world, search, list(range(5)))
    assert search.finished
    assert len([c for c in world.asked if isinstance(c, Score)]) == 2
    assert [b.score for b in search.branches()] == [0.4, 0.7, 0.4, 0.4, 0.7]
    best = search.best()
    assert best is not None
    assert best.answer == "2"
    assert best.support == pytest.approx(1.4 / 2.6)


def test_a_failed_score_is_missing_from_all_that_share_it() -> None:
    same, other = dataclasses.replace(says("1"), score_fails=True), says("2", score=0.2)
    search = run([same, other, same])
    assert [b.score for b in search.branches()] == [None, 0.2, None]
    assert answer(search) == "2"


@pytest.mark.parametrize("by", ["check", "compare"])
def test_a_reduction_of_step_scores_is_refused_where_nothing_is_scored(by: Any) -> None:
    with pytest.raises(ValueError, match="reduction"):
        BestOfNParams(by=by, reduction="min")
