"""Big trees of steps stay fast."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from search.contract import Chunk, Event, Failed, Generate, Generated, Room, Score, Scored
from search.mcts import Mcts, MctsParams
from search.rebase import Rebase, RebaseParams
from search.stepwise import StepSearch
from tests.search.steps_world import STEP_LIMITS
from tests.search.tree_searches import ground, steps_of

DEEP = replace(STEP_LIMITS, max_new_tokens=400)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rebase(RebaseParams(n=400), ground(DEEP)),
        lambda: Mcts(MctsParams(expansions=2000, answers=1024, width=64), ground(DEEP)),
    ],
    ids=["rebase", "mcts"],
)
def test_thousands_of_steps_stay_fast(make: Callable[[], StepSearch]) -> None:
    """The bound is far above what is needed, and far below what quadratic work would take."""
    search = make()
    w = Quick(search)
    began = time.process_time()
    w.run()
    assert len(steps_of(search)) >= 2000
    assert time.process_time() - began < 15


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
