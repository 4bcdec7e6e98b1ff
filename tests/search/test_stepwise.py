"""What holds for every technique over steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from search.contract import Call, Chunk, Equate, Event, Generate, Generated, Score, Search
from search.step import StepState
from search.stepwise import StepSearch
from search.tool_calls import ToolMarkers
from tests.search.drive import PROMPT
from tests.search.steps_world import STEP_LIMITS, EarlyWorld, StepWorld
from tests.search.tree_searches import COSTS, SMALL, ground, steps_of, world

EVERY = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
Make = Callable[..., StepSearch]


@EVERY
@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_path_that_the_verifier_likes(make: Make, seed: int) -> None:
    search = world(depth=4, choices=2, rng=random.Random(seed)).run(make(ground(seed=seed), aggregate="max"))
    best = search.best()
    assert best is not None
    assert best.answer == "7"


@EVERY
def test_case_28_a_path_that_ends_early_stays_in_the_final_choice(make: Make) -> None:
    # All first steps are complete answers but those that choose 1, which go on and only get worse.
    search, w = make(), EarlyWorld([], costs=COSTS, depth=4, choices=2)
    w.run(search)
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (True, "7")


@EVERY
@pytest.mark.parametrize("limit", [30, 100])
def test_case_34_no_path_that_ends_gives_an_incomplete_result_and_no_exception(
    make: Make, limit: int
) -> None:
    search = make(ground(replace(STEP_LIMITS, max_new_tokens=limit)), max_depth=5)
    world(endless=True).run(search)
    assert search.stop_reason == "incomplete"
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (False, None)
    ends = {b.reason for b in search.branches() if b.fate == "truncated"}
    assert ends == {"max_depth reached"}


@EVERY
@pytest.mark.parametrize("kv_tokens", [12, 25, 60])
def test_under_a_tight_kv_room_it_narrows_and_still_finishes(make: Make, kv_tokens: int) -> None:
    search = make()
    world(depth=4, kv_tokens=len(PROMPT) + kv_tokens).run(search)
    assert search.stop_reason in ("all_done", "enough_answers")
    best = search.best()
    assert best is not None
    assert best.complete


@EVERY
@pytest.mark.parametrize("tokens", [0, 1, 20, 50, 200])
def test_it_keeps_a_cap_of_tokens(make: Make, tokens: int) -> None:
    search, w = make(), world(tokens=tokens)
    w.run(search)
    assert w.charged <= tokens


@EVERY
def test_failed_steps_are_drawn_again_as_often_as_may_be(make: Make) -> None:
    search, w = make(max_retries=3), world(fails=lambda call, n: isinstance(call, Generate) and n < 3)
    w.run(search)
    assert w.failures == 3
    best = search.best()
    assert best is not None
    assert best.complete
    reference = make(max_retries=0)
    world().run(reference)
    assert sum(s.state is StepState.FAILED for s in steps_of(search)) == 3
    assert len([s for s in steps_of(search) if s.depth == 0]) >= len(
        [s for s in steps_of(reference) if s.depth == 0]
    )


@EVERY
def test_an_engine_that_always_fails_ends_the_search(make: Make) -> None:
    search, w = make(), world(fails=lambda call, _: isinstance(call, Generate))
    w.run(search)
    assert search.stop_reason == "all_failed"
    assert search.best() is None


@EVERY
def test_a_verifier_that_always_fails_leaves_a_vote(make: Make) -> None:
    search, w = make(), world(choices=1, fails=lambda call, _: isinstance(call, Score))
    w.run(search)
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer, best.score) == (True, "7", None)


@EVERY
def test_the_very_same_step_is_scored_once(make: Make) -> None:
    search, w = make(), world(choices=1, depth=3)
    w.run(search)
    scored = [tuple(search.tree.path_ids(c.node)) for c in w.asked if isinstance(c, Score)]
    parents = [(search.tree.path(c.node)[-2], ids) for c, ids in zip(scores(w), scored, strict=True)]
    assert len(parents) == len(set(parents))


def scores(w: StepWorld) -> list[Score]:
    return [c for c in w.asked if isinstance(c, Score)]


@EVERY
def test_all_its_kv_may_be_dropped_at_any_moment(make: Make) -> None:
    search, w = make(), world(depth=4, releases=1.0, rng=random.Random(3), slots=2)
    w.run(search)
    best = search.best()
    assert best is not None
    assert best.complete


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    ("reduction", "score"), [("product", 0.9**4), ("min", 0.9), ("mean", 0.9), ("last", 0.9)]
)
@pytest.mark.parametrize("name", ["dvts", "rebase", "particle"])
def test_a_twin_has_the_score_of_its_first_reduced_once(
    name: str, reduction: str, score: float, slots: int
) -> None:
    search = SMALL[name](reduction=reduction)
    world(depth=4, choices=1, slots=slots).run(search)
    scores_of_answers = [b.score for b in search.branches() if b.answer is not None]
    assert len(scores_of_answers) > 4
    assert scores_of_answers == pytest.approx([score] * len(scores_of_answers))


def test_a_finished_answer_is_never_pruned_and_a_twin_of_a_pruned_step_is_scored_itself() -> None:
    search, w = SMALL["rebase"](n=3), world(depth=1, choices=1)
    write_all(search, w)
    assert [s.finished for s in steps_of(search)] == [True] * 3
    assert search._stepper.prune(steps_of(search), "given up") == []
    w.run(search)
    assert [b.fate for b in search.branches()].count("agreed") == 2

    search, w = SMALL["rebase"](n=3), world(depth=2, choices=1)
    write_all(search, w)
    first, *others = steps_of(search)
    assert [s.state for s in (first, *others)] == [StepState.SCORING] * 3
    asked = first.call
    cancels = search._stepper.prune([first], "given up")
    assert cancels == [asked]
    for call in cancels:
        del w.in_flight[call]
    w.run(search, until=lambda: all(s.ended for s in steps_of(search)[:3]))
    assert [s.state for s in (first, *others)] == [StepState.PRUNED, StepState.OPEN, StepState.OPEN]
    assert all(s.score == 0.9 for s in others)


def test_of_steps_that_hold_all_the_kv_and_wait_for_more_one_goes_on() -> None:
    on = ground(replace(STEP_LIMITS, max_new_tokens=300, step_tokens=300))
    search, w = SMALL["rebase"](on, n=2), world(depth=1, length=200)
    # A little for the first one, so that the prompt is prefilled, then for the second one beside it.
    for kv_tokens in (20, 80):
        w.kv_tokens = len(PROMPT) + kv_tokens
        w.ask(search)
        w.tell(search, w.event_of(search, max(w.in_flight.values(), key=lambda c: c.id)))
    assert len(w.in_flight) == 2
    w.kv_tokens = len(PROMPT) + 210
    w.run(search)
    assert search.stop_reason == "all_done"
    assert sum(s.finished for s in steps_of(search)) == 2


def write_all(search: StepSearch, w: StepWorld) -> None:
    """Let all that is being written end, and nothing be scored."""
    while True:
        w.ask(search)
        writing = [c for c in w.in_flight.values() if isinstance(c, Generate)]
        if not writing:
            return
        w.tell(search, w.event_of(search, writing[0]))


def test_the_kv_of_a_path_that_ended_is_let_go_of() -> None:
    search, w = SMALL["particle"](particles=2), world(depth=4)
    w.run(search, until=lambda: sum(s.state is StepState.COMPLETE for s in steps_of(search)) == 1)
    assert not search.finished
    assert search.tree.live_tokens <= len(PROMPT) + 4 * 3


@EVERY
def test_a_path_that_ends_and_one_that_goes_on_are_no_twins(make: Make) -> None:
    """The same tokens, once ended by the model and once at the end of a step: the answer is not lost."""
    search, w = make(max_depth=3), HalfWorld([], costs=COSTS)
    w.run(search)
    answered = [s for s in steps_of(search) if s.finished]
    assert answered
    assert any(s.state is StepState.COMPLETE for s in answered if s.depth == 0)


@dataclass
class HalfWorld(StepWorld):
    """All steps have the same tokens; after every other one the model ends its turn."""

    def written(self, search: Search, call: Generate) -> Event:
        if not search.tree[call.node].token_ids:
            return Chunk(call.id, (3, 4), "Answer: 4\n")
        return Generated(call.id, "step", "\n", 1) if call.seed % 2 else Generated(call.id, "stop")

    def chosen(self, search: Search, node: int) -> list[int]:
        return []


@EVERY
def test_calls_of_tools_are_never_compared_with_answers(make: Make) -> None:
    """Only answers in words or numbers are put to mathematics."""

    @dataclass
    class ToolWorld(StepWorld):
        def piece(self, at: int, step: int, choices: Sequence[int]) -> str:
            text = super().piece(at, step, choices)
            if not text.startswith("\\boxed"):
                return text
            if choices[0]:
                return f'<tool_call>{{"name": "t", "arguments": {{"n": {choices[-1]}}}}}</tool_call>'
            return f"\\boxed{{\\sqrt{{{choices[-1]}}}}}"

    limits = replace(STEP_LIMITS, tool_calls=ToolMarkers(), equate=True)
    asked: list[Equate] = []
    called = 0
    for seed in range(8):
        w = ToolWorld([], costs=COSTS, depth=2, choices=3)
        search = w.run(make(ground(limits, seed)))
        asked += [c for c in w.asked if isinstance(c, Equate)]
        called += any("<tool_call>" in node.text for node in search.tree)
    assert called, "no path called a tool"
    assert asked, "no answers were compared"
    assert all("sqrt" in c.answer and "sqrt" in c.other for c in asked)


@EVERY
def test_of_answers_of_equal_score_the_likelier_wins(make: Make) -> None:
    asked: list[int] = []

    def noted(call: Call, _: int) -> bool:
        asked.extend([call.logprobs] if isinstance(call, Generate) else [])
        return False

    odd = world(
        depth=2, choices=2, worth=lambda _: 0.5, logprob=lambda choice: 5.0 * (choice - 1), fails=noted
    )
    best = odd.run(make(likelihood=1.0)).best()
    assert best is not None
    assert best.answer == "11"
    assert set(asked) == {1}
    asked.clear()
    world(fails=noted).run(make())
    assert set(asked) == {0}


@EVERY
@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e6])
def test_where_no_path_is_likely_at_all_the_scores_decide(make: Make, logprob: float) -> None:
    search = world(depth=3, choices=2, logprob=lambda _: logprob).run(make(likelihood=1.0))
    best = search.best()
    assert best is not None
    assert best.answer == "7"
    assert 0.0 < best.support <= 1.0


@EVERY
@pytest.mark.parametrize(
    ("params", "legal"),
    [
        ({"likelihood": -0.1}, "likelihood must be a number in 0.0..10.0"),
        ({"likelihood": 0.5, "aggregate": "max"}, "likelihood must be 0 with aggregate=max"),
    ],
)
def test_a_likelihood_that_cannot_be_is_refused(make: Make, params: dict[str, Any], legal: str) -> None:
    with pytest.raises(ValueError, match=legal):
        make(**params)
