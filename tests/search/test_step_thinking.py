"""Techniques over steps with a model that thinks first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from search.contract import Chunk, Event, Generate, Generated, Search
from search.extract import ThinkingMarkers
from search.ground import Phrase
from search.segments import THINK_CLOSE
from search.step import StepState
from search.stepwise import StepSearch
from tests.search.drive import PROMPT
from tests.search.steps_world import STEP_LIMITS, StepWorld
from tests.search.tree_searches import COSTS, SMALL, ground, steps_of

EVERY = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
Make = Callable[..., StepSearch]


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
