"""Best-of-N drawn and scored step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from search.best_of_n import BestOfN, BestOfNParams
from search.contract import Call, Costs, Generate, Score
from search.ground import Ground
from search.log import Header, build, record, replay
from search.registry import TECHNIQUES
from search.step import StepState
from search.stepped_best_of_n import SteppedBestOfN
from tests.search.drive import PROMPT
from tests.search.profile import EXAMPLES
from tests.search.steps_world import STEP_LIMITS, StepWorld

COSTS = Costs(score_tokens=2)


def stepped(seed: int = 7, **params: Any) -> SteppedBestOfN:
    made = BestOfNParams(**{"reduction": "min", **params})
    return SteppedBestOfN(made, Ground.of(PROMPT, STEP_LIMITS, COSTS, seed))


def world(**fields: Any) -> StepWorld:
    return StepWorld([], costs=COSTS, **fields)


@pytest.mark.parametrize("reduction", ["min", "product", "mean"])
def test_it_finds_the_path_that_the_verifier_likes(reduction: str) -> None:
    for seed in range(6):
        search = stepped(seed, n=24, width=8, reduction=reduction, aggregate="max")
        world(depth=2, choices=2, rng=random.Random(seed)).run(search)
        best = search.best()
        assert best is not None
        assert best.answer == "7"


def test_it_draws_n_chains_and_every_step_has_one_child() -> None:
    search = stepped(n=7, width=3)
    world(depth=4).run(search)
    assert search.stop_reason == "all_done"
    assert len([s for s in search._stepper.steps if s.parent is None]) == 7
    assert all(len(s.children) <= 1 for s in search._stepper.steps)
    assert len([s for s in search._stepper.steps if s.state is StepState.COMPLETE]) == 7


def test_no_more_than_width_chains_are_under_way() -> None:
    search = stepped(n=9, width=3)
    w = world(depth=3, rng=random.Random(2))
    while not search.finished:
        w.ask(search)
        chains = {search.tree.path(c.node)[1] for c in w.in_flight.values() if isinstance(c, Generate)}
        assert len(chains) <= 3
        w.tell(search, w.next_event(search))


@pytest.mark.parametrize(
    ("reduction", "score"), [("min", 0.2), ("product", 0.9 * 0.2 * 0.8), ("mean", (0.9 + 0.2 + 0.8) / 3)]
)
def test_the_scores_of_a_chain_are_reduced_to_one(reduction: str, score: float) -> None:
    worth = {1: 0.9, 2: 0.2, 3: 0.8}

    def by_depth(choices: Sequence[int]) -> float:
        return worth[len(choices)]

    search = stepped(n=1, reduction=reduction)
    world(depth=3, worth=by_depth).run(search)
    best = search.best()
    assert best is not None
    assert best.score == pytest.approx(score)


def test_chains_of_the_same_tokens_all_count() -> None:
    search = stepped(n=5, width=5)
    world(depth=2, choices=1).run(search)
    fates = [b.fate for b in search.branches() if b.answer is not None]
    assert sorted(fates) == ["agreed"] * 4 + ["chosen"]


def test_a_step_that_is_lost_is_drawn_again_from_the_one_before() -> None:
    def fails(call: Call, failures: int) -> bool:
        return isinstance(call, Generate) and call.parent != 0 and failures < 2

    search = stepped(n=3, width=3, max_retries=2)
    world(depth=3, fails=fails).run(search)
    complete = [s for s in search._stepper.steps if s.state is StepState.COMPLETE]
    assert len(complete) == 3
    assert [b.fate for b in search.branches()].count("failed") == 2


def test_chains_that_are_lost_for_good_leave_the_others() -> None:
    def fails(call: Call, failures: int) -> bool:
        return isinstance(call, Generate) and failures < 2

    search = stepped(n=3, width=1, max_retries=0)
    world(depth=2, fails=fails).run(search)
    assert search.stop_reason == "all_done"
    best = search.best()
    assert best is not None
    assert best.complete


def test_a_failing_verifier_leaves_a_vote() -> None:
    search = stepped(n=4, width=4)
    world(depth=2, choices=1, fails=lambda call, _: isinstance(call, Score)).run(search)
    best = search.best()
    assert best is not None
    assert (best.answer, best.score, best.support) == ("7", None, 1.0)


def test_case_34_chains_that_do_not_end_give_an_incomplete_result() -> None:
    search = stepped(n=3, width=3, max_depth=2)
    world(endless=True).run(search)
    assert search.stop_reason == "incomplete"
    best = search.best()
    assert best is not None
    assert not best.complete


@pytest.mark.parametrize("kv_tokens", [len(PROMPT) + 14, len(PROMPT) + 40])
def test_under_a_tight_kv_room_it_narrows_and_still_finishes(kv_tokens: int) -> None:
    search = stepped(n=6, width=6)
    world(depth=4, kv_tokens=kv_tokens).run(search)
    assert search.stop_reason == "all_done"


def test_any_order_room_and_failures_keep_the_contract_and_replay() -> None:
    rng = random.Random(11)
    for _ in range(max(10, EXAMPLES // 3)):
        params = BestOfNParams(
            n=rng.randint(1, 6),
            width=rng.randint(1, 6),
            reduction=rng.choice(["min", "product", "mean"]),
            aggregate=rng.choice(["weighted", "max"]),
            max_depth=rng.randint(1, 6),
            max_retries=rng.randint(0, 3),
        )
        recorder = record(Header("best_of_n", params, STEP_LIMITS, COSTS, 7, PROMPT), 100_000)
        chance, bad = random.Random(rng.random()), rng.choice([0.0, 0.2])
        world(
            depth=rng.randint(1, 4),
            rng=random.Random(rng.random()),
            tokens=rng.choice([20, 60, 100_000]),
            kv_tokens=len(PROMPT) + rng.choice([12, 40, 100_000]),
            squeeze=rng.random() < 0.5,
            releases=rng.choice([0.0, 0.3]),
            fails=lambda _, __, c=chance, b=bad: c.random() < b,
        ).run(recorder)
        again = replay(recorder.log)
        assert again.best() == recorder.best()
        assert again.branches() == recorder.branches()


@pytest.mark.parametrize("reduction", ["min", "product", "mean"])
def test_the_registry_makes_the_class_that_the_reduction_wants(reduction: str) -> None:
    head = Header("best_of_n", BestOfNParams(reduction=reduction), STEP_LIMITS, COSTS, 7, PROMPT)  # type: ignore[arg-type]
    assert isinstance(build(head), SteppedBestOfN)
    plain = Header("best_of_n", BestOfNParams(), STEP_LIMITS, COSTS, 7, PROMPT)
    assert isinstance(build(plain), BestOfN)


def test_the_bound_on_tokens_counts_a_score_a_step() -> None:
    technique = TECHNIQUES["best_of_n"]

    def most(**params: Any) -> int:
        return technique.most_tokens(
            BestOfNParams(n=4, max_retries=0, **params), STEP_LIMITS, COSTS, len(PROMPT)
        )

    assert most() == 4 * (100 + 2)
    assert most(reduction="min", max_depth=9) == 4 * (100 + 9 * 2)
    search = stepped(n=4, max_retries=0, max_depth=9)
    w = world(depth=9)
    w.run(search)
    assert w.charged <= most(reduction="min", max_depth=9)
