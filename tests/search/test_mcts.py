"""Monte Carlo tree search over steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from search.bounds import Bounds
from search.contract import Costs
from search.mcts import MOST_REPEATS, Mcts, MctsParams
from search.step import StepState
from tests.search.drive import PROMPT
from tests.search.steps_world import STEP_LIMITS
from tests.search.tree_searches import COSTS, SMALL, ground, steps_of, world


def mcts(**params: Any) -> Mcts:
    return Mcts(MctsParams(**params), ground())


@pytest.mark.parametrize("width", [1, 3, 8])
def test_at_most_width_expansions_are_under_way(width: int) -> None:
    search, w = mcts(expansions=60, width=width), world(depth=4)
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max(most, sum(not s.ended for s in steps_of(search)))
        return False

    w.run(search, until=watch)
    assert 1 <= most <= width


@pytest.mark.parametrize("expansions", [1, 2, 13, 60])
def test_it_ends_when_its_expansions_are_used_up(expansions: int) -> None:
    search = mcts(expansions=expansions, answers=1000)
    world(depth=4).run(search)
    assert len(steps_of(search)) == expansions
    assert search.stop_reason in ("all_done", "incomplete")


def test_it_ends_with_enough_answers() -> None:
    search = mcts(expansions=1000, answers=3)
    world(depth=3).run(search)
    assert search.stop_reason == "enough_answers"
    assert sum(s.state is StepState.COMPLETE for s in steps_of(search)) >= 3
    assert len(steps_of(search)) < 1000


def test_without_widening_it_goes_straight_down() -> None:
    search = mcts(expansions=3, width=1, widen_k=1.0, widen_alpha=0.0)
    world(depth=5).run(search)
    assert [s.depth for s in steps_of(search)] == [0, 1, 2]


def test_with_much_widening_it_stays_at_the_root() -> None:
    search = mcts(expansions=MOST_REPEATS, width=1, widen_k=100.0)
    world(depth=5, choices=10).run(search)
    assert {s.depth for s in steps_of(search)} == {0}


def test_the_better_step_is_visited_more() -> None:
    search = mcts(expansions=120, answers=1000)
    world(depth=6, choices=2, rng=random.Random(1)).run(search)
    nodes = {search.value(n.step): n.visits for n in search._root.children if n.step is not None}
    assert len(nodes) == 2
    assert nodes[max(nodes)] > 2 * nodes[min(nodes)]


def test_the_mean_of_a_node_is_that_of_all_that_came_back_below_it() -> None:
    search = mcts(expansions=60, answers=1000)
    world(depth=4).run(search)
    for node in search._nodes.values():
        below = [node]
        for each in below:
            below += each.children
        values = [search.value(n.step) for n in below if n.step is not None]
        ends = [
            c for n in below if n.step is not None for c in n.step.children if c.index not in search._nodes
        ]
        values += [search.value(c) for c in ends if c.state is StepState.COMPLETE and c.has_text]
        assert node.visits == len(values)
        assert node.total == pytest.approx(sum(values))
        assert node.pending == 0


def test_with_a_virtual_loss_parallel_expansions_look_elsewhere() -> None:
    def parents(virtual_loss: float) -> int:
        search = mcts(expansions=60, width=8, widen_k=3.0, widen_alpha=0.5, virtual_loss=virtual_loss)
        w = world(depth=8, choices=9)
        w.run(search, until=lambda: len([s for s in steps_of(search) if s.ended]) >= 20)
        w.ask(search)
        return len({s.parent.index for s in steps_of(search) if not s.ended and s.parent is not None})

    assert parents(20.0) >= parents(0.0)
    assert parents(20.0) > 1


def test_a_model_that_always_writes_the_same_is_not_asked_for_ever() -> None:
    search = mcts(expansions=1000, answers=10)
    world(depth=3, choices=1).run(search)
    assert search.stop_reason == "all_done"
    under_way = MctsParams().width
    assert len(steps_of(search)) <= 3 * (1 + MOST_REPEATS) + under_way
    assert len(search._root.children) == 1


def test_its_bound_of_tokens_holds() -> None:
    params = MctsParams(expansions=40, answers=1000)
    search, w = Mcts(params, ground()), world(depth=6)
    w.run(search)
    assert w.charged <= params.most_tokens(Bounds(STEP_LIMITS, COSTS, len(PROMPT)), None)
    assert params.most_tokens(Bounds(STEP_LIMITS, Costs(), len(PROMPT)), None) == 44 * 20 + 100


def test_it_is_among_the_small_ones_of_all_tests() -> None:
    assert isinstance(SMALL["mcts"](), Mcts)


@pytest.mark.parametrize(
    ("field", "bad", "legal"),
    [("expansions", 0, "1..65536"), ("widen_k", 0.5, "1.0..1000.0"), ("virtual_loss", -1, "0.0..100.0")],
)
def test_a_bad_parameter_is_refused_with_its_range(field: str, bad: float, legal: str) -> None:
    with pytest.raises(ValueError) as refused:
        MctsParams(**{field: bad})  # type: ignore[arg-type]
    assert field in str(refused.value)
    assert legal in str(refused.value)
