"""What holds for every technique over steps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from search.contract import Chunk, Event, Failed, Generate, Generated, Room, Score, Scored, Search
from search.extract import ThinkingMarkers
from search.ground import Phrase
from search.mcts import Mcts, MctsParams
from search.rebase import Rebase, RebaseParams
from search.segments import THINK_CLOSE
from search.step import StepState
from search.stepwise import StepSearch
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


def test_tokens_of_thinking_are_none_of_the_step_that_answers() -> None:
    """Thinking that is longer than a step may be leaves the answer its step, in however many slices."""
    limits = replace(THINKING, step_tokens=5)
    search = SMALL["rebase"](ground(limits, phrases=CLOSE), n=1)
    w = AnswerWorld([], costs=COSTS, kv_tokens=len(PROMPT) + 1000)
    w.run(search)
    best = search.best()
    assert best is not None
    assert best.complete
    texts = [search.tree.path_text(s.nodes[-1]) for s in steps_of(search)]
    assert texts[0].endswith("</think>\nw w w w w ")


@dataclass
class ThinkingWorld(StepWorld):
    """A model that begins with thinking and would never end it by itself."""

    thought: str = "hm "

    def written(self, search: Search, call: Generate) -> Event:
        text = search.tree.path_text(call.node)
        if "</think>" not in text:
            if self.left[call.id] == 0:
                return Generated(call.id, "length")
            count = 1 if not text else min(self.left[call.id], 5)
            return Chunk(call.id, (9,) * count, self.thought * count if text else "<think>")
        if text.endswith("}"):
            return Generated(call.id, "stop")
        if self.left[call.id] == 0:
            return Generated(call.id, "length")
        return Chunk(call.id, (8,), "\\boxed{5}")

    def chosen(self, search: Search, node: int) -> list[int]:
        return []


@dataclass
class AnswerWorld(ThinkingWorld):
    """Its answer is 12 words, two tokens a call at the most, and then a box."""

    def written(self, search: Search, call: Generate) -> Event:
        _, closed, answer = search.tree.path_text(call.node).partition("</think>\n")
        if not closed or len(answer) >= 24:
            return super().written(search, call)
        if self.left[call.id] == 0 or len(search.tree[call.node].token_ids) == 2:
            return Generated(call.id, "length")
        return Chunk(call.id, (8,), "w ")


DEEP = replace(STEP_LIMITS, max_new_tokens=400)
THINKING = replace(STEP_LIMITS, thinking=ThinkingMarkers())
CLOSE = {THINK_CLOSE: Phrase((7, 8), "</think>\n")}


@EVERY
@pytest.mark.parametrize(
    "limits", [THINKING, replace(THINKING, context_tokens=len(PROMPT) + 80)], ids=["max", "context"]
)
def test_case_29_thinking_that_reaches_the_limit_is_closed_and_answered(make: Make, limits: Any) -> None:
    search, w = make(ground(limits, phrases=CLOSE)), ThinkingWorld([], costs=COSTS)
    w.run(search)
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (True, "5")
    assert "</think>" in search.tree.path_text(best.node)


@EVERY
def test_case_29_thinking_that_cannot_be_closed_is_truncated_and_not_dropped(make: Make) -> None:
    search, w = make(ground(THINKING)), ThinkingWorld([], costs=COSTS)
    w.run(search)
    assert search.stop_reason == "incomplete"
    assert {b.fate for b in search.branches()} <= {"truncated", "pruned"}
    assert any(b.fate == "truncated" and b.reason == "max_new_tokens reached" for b in search.branches())
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (False, None)


@EVERY
def test_case_31_a_box_within_thinking_is_neither_an_end_nor_an_answer(make: Make) -> None:
    search = make(ground(THINKING, phrases=CLOSE))
    ThinkingWorld([], costs=COSTS, thought="\\boxed{3}\n").run(search)
    best = search.best()
    assert best is not None
    assert best.answer == "5"
    # The thinking section is one step, however many lines it has.
    ended = [s for s in steps_of(search) if s.ended and s.state is not StepState.STOPPED]
    assert ended
    assert all("</think>" in search.tree.path_text(s.nodes[-1]) for s in ended)


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rebase(RebaseParams(n=600), ground(DEEP)),
        lambda: Mcts(MctsParams(expansions=3000, answers=1024, width=64), ground(DEEP)),
    ],
    ids=["rebase", "mcts"],
)
def test_thousands_of_steps_stay_fast(make: Callable[[], StepSearch]) -> None:
    """The bound is far above what is needed, and far below what quadratic work would take."""
    search = make()
    w = Quick(search)
    began = time.process_time()
    w.run()
    assert len(steps_of(search)) >= 2500
    assert time.process_time() - began < 20


class Quick:
    """A world that costs nothing itself: each step is one chunk of one of 16 tokens, five deep."""

    def __init__(self, search: StepSearch) -> None:
        self.search = search
        self.rng = random.Random(1)

    def run(self) -> None:
        queue: list[Any] = []
        while not self.search.finished:
            queue += self.search.ask(Room(64 - len(queue), 10**9, 10**9))
            call = queue.pop(self.rng.randrange(len(queue)))
            for event in self.events(call):
                self.search.tell(event)

    def events(self, call: Any) -> list[Event]:
        if isinstance(call, Score):
            return [Scored(call.id, self.rng.random())]
        if not isinstance(call, Generate):
            return [Failed(call.id, "none of it is known here")]
        token = self.rng.randrange(16)
        deep = len(self.search.tree.path(call.node)) > 5
        text = f"\\boxed{{{token}}}" if deep else f"{token}\n"
        end = Generated(call.id, "stop") if deep else Generated(call.id, "step", "\n", 1)
        return [Chunk(call.id, (token,), text), end]
