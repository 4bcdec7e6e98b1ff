"""Best-of-N by comparisons."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from search.best_of_n import BestOfNParams
from search.contract import Call, Compare, Costs, Event, Failed, Generated, Search
from search.ground import Ground
from search.judged_best_of_n import JudgedBestOfN
from search.registry import TECHNIQUES
from tests.search.drive import LIMITS, PROMPT, Script, World, says

COSTS = Costs(compare_tokens=10)


@dataclass
class JudgeWorld(World):
    """The judge prefers the higher score of the scripts; it is lost for the first `lost` times."""

    lost: int = 0

    def event_of(self, search: Search, call: Call) -> Event:
        if isinstance(call, Compare) and self.lost > 0:
            self.lost -= 1
            return Failed(call.id, "judge lost")
        return super().event_of(search, call)


def judged(**params: Any) -> JudgedBestOfN:
    return JudgedBestOfN(BestOfNParams(by="compare", **params), Ground.of(PROMPT, LIMITS, COSTS, 7))


def run(scripts: list[Script], seed: int = 0, **world: Any) -> tuple[JudgedBestOfN, JudgeWorld]:
    search = judged(n=len(scripts), width=len(scripts), max_retries=0)
    made = JudgeWorld(scripts, costs=COSTS, rng=random.Random(seed), **world)
    made.run(search)
    assert search.finished
    return search, made


def answer(search: JudgedBestOfN) -> str | None:
    best = search.best()
    assert best is not None
    return best.answer


def compares(world: World) -> list[Compare]:
    return [c for c in world.asked if isinstance(c, Compare)]


@pytest.mark.parametrize("seed", range(5))
def test_the_answer_that_the_judge_prefers_wins_over_the_majority(seed: int) -> None:
    scripts = [
        says("7", 5, score=0.3),
        says("7", 6, score=0.3),
        says("8", 7, score=0.5),
        says("9", 8, score=0.9),
    ]
    search, _ = run(scripts, seed)
    assert search.stop_reason == "judged"
    assert answer(search) == "9"
    assert [b.fate for b in search.branches()] == ["outscored", "outscored", "outscored", "chosen"]


def test_answers_are_compared_not_samples() -> None:
    search, world = run([says("7", 5, 0.1), says("7.0", 6, 0.1), says("9", 7, 0.9), says("9", 8, 0.9)])
    assert len(compares(world)) == 1
    assert answer(search) == "9"


def test_one_answer_needs_no_judge() -> None:
    search, world = run([says("7", 5), says("7", 6)])
    assert compares(world) == []
    assert search.stop_reason == "all_done"
    assert answer(search) == "7"


def test_comparisons_begin_when_all_samples_are_there() -> None:
    search = judged(n=4, width=4, max_retries=0)
    world = JudgeWorld([says(str(i), 5 + i, 0.1 * i) for i in range(4)], costs=COSTS)
    world.run(search, until=lambda: sum(isinstance(e, Generated) for e in world.events) == 3)
    assert compares(world) == []
    best = search.best()
    assert best is not None
    assert best.complete


def test_texts_without_answers_are_compared_themselves() -> None:
    texts = [
        Script(("a long text of more than one short line, ", f"not an answer but {word}")) for word in "abc"
    ]
    texts[1] = Script(texts[1].pieces, score=0.9)
    search, world = run(texts)
    assert len(compares(world)) == 3
    best = search.best()
    assert best is not None
    assert (best.answer, best.node) == (None, search.branches()[1].nodes[-1])


def test_case_45_empty_text_never_meets_the_judge() -> None:
    empty = Script((" ", ""), score=1.0)
    boxed = Script(("\\boxed{", "}"), score=1.0)
    search, world = run([empty, boxed, says("7", score=0.1), says("8", 7, score=0.2)])
    assert answer(search) == "8"
    assert len(compares(world)) == 1


def test_a_comparison_that_fails_once_is_asked_again() -> None:
    search, world = run([says("7", 5, 0.1), says("9", 7, 0.9)], lost=1)
    assert len(compares(world)) == 2
    assert answer(search) == "9"


def test_when_the_judge_is_lost_the_vote_stands() -> None:
    scripts = [says("9", 5, 0.9), says("7", 6, 0.1), says("7", 7, 0.1)]
    search, _ = run(scripts, lost=100)
    assert answer(search) == "7"
    best = search.best()
    assert best is not None
    assert best.support == 2 / 3


@pytest.mark.parametrize("kv_tokens", [len(PROMPT) + 110, len(PROMPT) + 130])
def test_under_a_tight_kv_room_the_matches_come_one_by_one(kv_tokens: int) -> None:
    scripts = [says(str(i), 50 + i, 0.1 * i) for i in range(5)]
    search, world = run(scripts, kv_tokens=kv_tokens)
    assert search.stop_reason == "judged"
    assert answer(search) == "4"
    assert search.tree.live_tokens == len(PROMPT)
    assert compares(world)


@pytest.mark.parametrize("tokens", [120, 200, 260])
def test_within_a_token_cap_there_is_an_answer_whether_or_not_the_judge_came_to_an_end(tokens: int) -> None:
    scripts = [says(str(i), 20 + i, 0.1 * i) for i in range(5)]
    search = judged(n=5, width=5, max_retries=0)
    JudgeWorld(scripts, costs=COSTS, tokens=tokens).run(search)
    assert answer(search) is not None


def test_a_release_between_matches_is_survived() -> None:
    scripts = [says(str(i), 20 + i, 0.1 * i) for i in range(6)]
    for seed in range(5):
        search, _ = run(scripts, seed, releases=0.7, slots=1)
        assert answer(search) == "5"


def test_the_bound_on_comparisons_holds() -> None:
    for n in (1, 2, 3, 7, 16):
        for finalists in (1, 4, 16):
            params = BestOfNParams(n=n, width=n, by="compare", finalists=finalists)
            search = JudgedBestOfN(params, Ground.of(PROMPT, LIMITS, COSTS, 7))
            world = JudgeWorld([says(str(i), 3 + i, 0.01 * i) for i in range(n)], costs=COSTS, lost=n)
            world.run(search)
            assert len(compares(world)) <= params.most_compares()


def test_the_registry_makes_it_and_knows_that_it_needs_comparisons() -> None:
    technique = TECHNIQUES["best_of_n"]
    params = BestOfNParams(by="compare")
    assert technique.needs(params) == frozenset({"compare"})
    assert isinstance(technique.build(PROMPT, params, LIMITS, COSTS, 7), JudgedBestOfN)
