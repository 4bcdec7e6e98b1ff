"""Beam search over steps."""

from __future__ import annotations

import itertools
import random

import pytest

from search.beam import Beam, BeamParams
from search.contract import Costs, Generate
from search.ground import Ground
from search.sample import SampleLimits
from search.step import Step, StepState
from tests.search.drive import PROMPT
from tests.search.steps_world import STEP_LIMITS, StepWorld
from tests.search.tree_searches import steps_of

COSTS = Costs(score_tokens=2)


def beam(limits: SampleLimits = STEP_LIMITS, seed: int = 7, **params: int) -> Beam:
    return Beam(BeamParams(**params), Ground.of(PROMPT, limits, COSTS, seed))  # type: ignore[arg-type]


def world(**fields: object) -> StepWorld:
    return StepWorld([], costs=COSTS, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_path_that_the_verifier_likes(seed: int) -> None:
    search = world(depth=5, choices=2, rng=random.Random(seed)).run(beam(seed=seed, width=3, expand=16))
    best = search.best()
    assert best is not None
    assert best.answer == "7"


def test_never_more_than_width_steps_of_a_depth_are_gone_on_from() -> None:
    search = beam(width=2, expand=3)
    world(depth=6).run(search)
    parents: dict[int, set[int]] = {}
    for step in search._stepper.steps:
        if step.parent is not None:
            parents.setdefault(step.depth, set()).add(step.parent.index)
    assert max(map(len, parents.values())) <= 2


def test_the_last_one_of_a_depth_finds_a_place_if_it_is_among_the_best() -> None:
    search = beam(width=2, expand=3)
    scores = itertools.count(1)  # the later the better
    w = world(depth=3, choices=9, worth=lambda chosen: next(scores) / 1000)

    def first_steps() -> list[Step]:
        return [s for s in steps_of(search) if s.depth == 0]

    w.run(search, until=lambda: sum(s.ended for s in first_steps()) == 6)
    last = max(first_steps(), key=search.value)
    assert last.state is StepState.OPEN
    assert search._demand.wants(last) or last.children
    w.run(search)
    assert len([s for s in first_steps() if s.children]) == 2


def test_it_does_not_wait_for_its_slowest_sibling() -> None:
    search = beam(width=2, expand=2)
    w = world(depth=4)
    w.ask(search)
    first = next(iter(w.in_flight.values()))
    w.tell(search, w.event_of(search, first))
    w.ask(search)
    slow = max(w.in_flight)
    while any(call != slow for call in w.in_flight):
        call = w.in_flight[min(c for c in w.in_flight if c != slow)]
        w.tell(search, w.event_of(search, call))
        w.ask(search)
    assert any(isinstance(c, Generate) and search.tree.path(c.parent)[1:] for c in w.asked), "nobody went on"
    assert slow in w.in_flight


def test_case_34_no_path_that_ends_gives_an_incomplete_result_and_no_exception() -> None:
    search = beam(width=2, expand=2, max_depth=3)
    world(endless=True).run(search)
    assert search.stop_reason == "incomplete"
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (False, None)


@pytest.mark.parametrize("kv_tokens", [len(PROMPT) + 12, len(PROMPT) + 25, len(PROMPT) + 60])
def test_under_a_tight_kv_room_it_narrows_and_still_finishes(kv_tokens: int) -> None:
    search = beam(width=3, expand=3)
    world(depth=4, kv_tokens=kv_tokens).run(search)
    assert search.stop_reason == "all_done"
    best = search.best()
    assert best is not None
    assert best.complete
