"""Particle filtering over steps."""

from __future__ import annotations

import random
from collections import Counter
from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.contract import Generate
from search.particle import ParticleParams, systematic
from search.step import StepState
from search.stepwise import StepSearch
from tests.search.profile import EXAMPLES
from tests.search.steps_world import EarlyWorld
from tests.search.tree_searches import COSTS, SMALL, ground, steps_of, world

WEIGHTS = st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=30)


@settings(derandomize=True, deadline=None, max_examples=EXAMPLES)
@given(WEIGHTS, st.integers(1, 64), st.floats(0, 1, exclude_max=True))
def test_each_is_drawn_its_share_rounded_up_or_down(weights: list[float], places: int, u: float) -> None:
    counts = systematic(weights, places, u)
    assert sum(counts) == places
    for count, weight in zip(counts, weights, strict=True):
        share = places * weight / sum(weights)
        assert floor(share - 1e-6) <= count <= ceil(share + 1e-6)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("particles", [1, 2, 7, 16])
def test_case_39_every_path_has_its_place_to_the_end(particles: int, threshold: float) -> None:
    search = SMALL["particle"](particles=particles, ess_threshold=threshold)
    world(depth=4).run(search)
    assert Counter(s.depth for s in steps_of(search)) == dict.fromkeys(range(4), particles)
    assert sum(s.finished for s in steps_of(search)) == particles


def shape(search: StepSearch) -> list[tuple[int | None, int]]:
    return [(s.parent.index if s.parent else None, s.number) for s in steps_of(search)]


def test_the_tree_does_not_depend_on_the_order_of_arrival() -> None:
    trees = []
    for order in range(6):
        search = SMALL["particle"]()
        world(depth=4, rng=random.Random(order)).run(search)
        texts = sorted(search.tree.path_text(s.nodes[-1]) for s in steps_of(search))
        trees.append((shape(search), texts))
    assert all(tree == trees[0] for tree in trees)


def test_another_seed_resamples_otherwise() -> None:
    shapes = set()
    for seed in range(6):
        search = SMALL["particle"](ground(seed=seed), temperature=3.0)
        world(depth=4).run(search)
        shapes.add(tuple(shape(search)))
    assert len(shapes) > 1


def test_without_resampling_each_path_goes_on_by_itself() -> None:
    search = SMALL["particle"](ess_threshold=0.0)
    world(depth=4).run(search)
    assert all(len(s.children) == 1 for s in steps_of(search) if s.depth < 3)


def test_a_good_path_is_gone_on_from_more_often() -> None:
    search = SMALL["particle"](particles=40)
    world(depth=2, choices=2).run(search)
    kids: dict[float, list[int]] = {0.9: [], 0.2: []}
    for step in steps_of(search):
        if step.depth == 0:
            kids[search.value(step)].append(len(step.children))
    good, bad = (sum(k) / len(k) for k in (kids[0.9], kids[0.2]))
    assert good > 4 * bad


def test_a_path_that_ends_keeps_its_place() -> None:
    search = SMALL["particle"](particles=12)
    EarlyWorld([], costs=COSTS, depth=4, choices=2).run(search)
    steps = Counter(s.depth for s in steps_of(search))
    ended = sum(s.finished for s in steps_of(search) if s.depth == 0)
    assert 0 < ended < 12
    assert steps == {0: 12, 1: 12 - ended, 2: 12 - ended, 3: 12 - ended}


def test_a_lost_path_leaves_its_place_to_the_others() -> None:
    search = SMALL["particle"](particles=6, max_retries=0, ess_threshold=0.0)
    w = world(depth=3, fails=lambda call, n: isinstance(call, Generate) and n < 2)
    w.run(search)
    assert sum(s.state is StepState.FAILED for s in steps_of(search)) == 2
    assert sum(s.finished for s in steps_of(search)) == 6


def test_a_bad_parameter_is_refused_with_its_range() -> None:
    with pytest.raises(ValueError, match=r"ess_threshold must be a number in 0\.0\.\.1\.0, not 1\.5"):
        ParticleParams(ess_threshold=1.5)
    with pytest.raises(ValueError, match=r"particles must be a whole number in 1\.\.1024, not 0"):
        ParticleParams(particles=0)
