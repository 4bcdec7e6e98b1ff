"""Diverse verifier tree search."""

from __future__ import annotations

from collections import defaultdict

import pytest

from search.contract import Generate
from search.dvts import DvtsParams
from search.step import StepState
from tests.search.tree_searches import SMALL, steps_of, world


@pytest.mark.parametrize(("subtrees", "expand"), [(1, 1), (1, 7), (3, 2), (5, 3)])
def test_case_39_each_subtree_goes_on_from_one_step_of_a_depth(subtrees: int, expand: int) -> None:
    search = SMALL["dvts"](subtrees=subtrees, expand=expand)
    world(depth=4).run(search)
    parents = defaultdict(set)
    for step in steps_of(search):
        if step.parent is not None:
            parents[step.depth].add((step.path()[0].number // expand, step.parent.index))
    for depth in parents:
        assert sorted(subtree for subtree, _ in parents[depth]) == list(range(subtrees))


def test_a_subtree_goes_on_from_its_best_step() -> None:
    search = SMALL["dvts"](subtrees=2, expand=4)
    world(depth=3, choices=3).run(search)
    for step in steps_of(search):
        if step.children and step.parent is not None:
            assert search.value(step) == max(search.value(s) for s in step.parent.children)


def test_a_slow_subtree_does_not_hold_up_the_others() -> None:
    search, w = SMALL["dvts"](subtrees=3, expand=2), world(depth=3)
    w.ask(search)
    w.tell(search, w.event_of(search, next(iter(w.in_flight.values()))))  # the prompt is prefilled
    w.ask(search)
    slow = next(c for c in w.in_flight if c != 1)
    while any(call != slow for call in w.in_flight):
        call = w.in_flight[min(c for c in w.in_flight if c != slow)]
        w.tell(search, w.event_of(search, call))
        w.ask(search)
    assert isinstance(w.in_flight[slow], Generate)
    done = {s.path()[0].number // 2 for s in steps_of(search) if s.finished}
    assert done == {1, 2}
    assert len(steps_of(search)) < 3 * 2 * 3


def test_a_first_step_that_failed_is_drawn_again_for_its_own_subtree() -> None:
    search = SMALL["dvts"](subtrees=2, expand=2, max_retries=2)
    world(depth=3, fails=lambda call, n: isinstance(call, Generate) and call.node in (3, 4)).run(search)
    assert sum(s.state is StepState.FAILED for s in steps_of(search)) == 2
    assert sum(s.finished for s in steps_of(search)) == 4
    assert any(s.children for s in steps_of(search)[:2]), "the other subtree took its place"


@pytest.mark.parametrize("field", ["subtrees", "expand", "max_depth"])
def test_a_bad_parameter_is_refused_with_its_range(field: str) -> None:
    with pytest.raises(ValueError, match=rf"{field} must be a whole number in 1\.\.1024, not 0"):
        DvtsParams(**{field: 0})  # type: ignore[arg-type]
