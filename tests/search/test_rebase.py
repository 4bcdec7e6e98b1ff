"""Reward-balanced search."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.contract import Generate
from search.rebase import RebaseParams
from tests.search.profile import EXAMPLES
from tests.search.steps_world import EarlyWorld
from tests.search.tree_searches import COSTS, SMALL, ground, steps_of, world


@pytest.mark.parametrize("n", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("temperature", [0.01, 0.2, 100.0])
def test_case_39_the_budget_of_a_depth_is_used_up_and_never_passed(n: int, temperature: float) -> None:
    search = SMALL["rebase"](n=n, temperature=temperature)
    world(depth=5, rng=random.Random(n)).run(search)
    depths = Counter(s.depth for s in steps_of(search))
    assert depths == dict.fromkeys(range(5), n)


def test_a_low_temperature_gives_all_to_the_best_and_a_high_one_spreads() -> None:
    def parents(temperature: float) -> int:
        search = SMALL["rebase"](n=16, temperature=temperature)
        world(depth=2, choices=2).run(search)
        return sum(bool(s.children) for s in steps_of(search) if s.depth == 0)

    assert parents(100.0) == 16
    assert parents(0.05) < 14


def test_a_step_goes_on_while_its_siblings_are_still_out() -> None:
    search, w = SMALL["rebase"](n=4), world(depth=4)
    w.ask(search)
    w.tell(search, w.event_of(search, next(iter(w.in_flight.values()))))
    w.ask(search)
    slow = max(w.in_flight)
    while any(call != slow for call in w.in_flight):
        call = w.in_flight[min(c for c in w.in_flight if c != slow)]
        w.tell(search, w.event_of(search, call))
        w.ask(search)
    assert slow in w.in_flight
    assert any(isinstance(c, Generate) and len(search.tree.path(c.node)) > 2 for c in w.asked)
    assert search.best() is not None


def test_paths_that_ended_are_taken_out_of_the_budget() -> None:
    search = SMALL["rebase"](n=12)
    EarlyWorld([], costs=COSTS, depth=4, choices=2).run(search)
    depths = Counter(s.depth for s in steps_of(search))
    ended = sum(s.finished for s in steps_of(search) if s.depth == 0)
    assert 0 < ended < 12
    assert depths == {0: 12, 1: 12 - ended, 2: 12 - ended, 3: 12 - ended}


@settings(derandomize=True, deadline=None, max_examples=max(1, EXAMPLES // 4))
@given(n=st.integers(1, 30), seed=st.integers(0, 999), lost=st.integers(0, 12))
def test_the_places_of_lost_steps_go_to_the_others(n: int, seed: int, lost: int) -> None:
    search = SMALL["rebase"](ground(seed=seed), n=n, max_retries=0)
    w = world(depth=4, rng=random.Random(seed), fails=lambda c, k: isinstance(c, Generate) and k < lost)
    w.run(search)
    counts = Counter(s.depth for s in steps_of(search))
    assert all(count <= n for count in counts.values())
    if lost < n:
        assert any(s.finished for s in steps_of(search))


def test_a_bad_parameter_is_refused_with_its_range() -> None:
    with pytest.raises(ValueError, match=r"temperature must be a number in 0\.01\.\.100\.0, not 0"):
        RebaseParams(temperature=0)
    with pytest.raises(ValueError, match=r"n must be a whole number in 1\.\.1024, not 0"):
        RebaseParams(n=0)
