from __future__ import annotations

import dataclasses
from itertools import count

import pytest

from search.best_of_n import BestOfNParams
from search.contract import Costs, Equate
from search.ground import Ground
from search.grouping import MOST_GROUPS, Grouping
from search.registry import TECHNIQUES
from search.self_consistency import SelfConsistencyParams
from tests.search.drive import LIMITS, PROMPT, World, says


def grouping(*keys: str, enabled: bool = True) -> Grouping:
    made = Grouping(count(1), enabled=enabled)
    for key in keys:
        made.note(key, f"the {key}")
    return made


def pairs(calls: list[Equate]) -> list[tuple[str, str]]:
    return [(c.answer.removeprefix("the "), c.other.removeprefix("the ")) for c in calls]


def test_each_new_answer_is_compared_with_every_group_and_none_twice() -> None:
    groups = grouping("x", "y", "x", "z")
    assert pairs(groups.ask(9)) == [("x", "y"), ("x", "z"), ("y", "z")]
    assert groups.ask(9) == []


def test_two_plain_numbers_are_not_compared_and_a_number_with_a_text_is() -> None:
    assert pairs(grouping("1", "2", "x").ask(9)) == [("1", "x"), ("2", "x")]


def test_nothing_is_compared_where_that_is_not_wanted() -> None:
    groups = grouping("x", "y", enabled=False)
    assert not groups.pending
    assert groups.ask(9) == []


def test_a_new_answer_is_compared_with_so_many_groups_at_the_most() -> None:
    groups = grouping(*(f"x{i}" for i in range(MOST_GROUPS + 5)))
    last = f"x{MOST_GROUPS + 4}"
    assert sum(pair[1] == last for pair in pairs(groups.ask(1000))) == MOST_GROUPS


def test_without_a_slot_comparisons_wait() -> None:
    groups = grouping("x", "y")
    assert groups.ask(0) == []
    assert groups.pending
    assert len(groups.ask(1)) == 1


@pytest.mark.parametrize("same", [False, None])
def test_a_comparison_that_fails_or_differs_joins_nothing(same: bool | None) -> None:
    groups = grouping("x", "y")
    (call,) = groups.ask(1)
    assert groups.tell(call.id, same) is None
    assert (groups.key("x"), groups.key("y")) == ("x", "y")
    assert not groups.pending


def test_a_join_goes_to_the_group_that_was_there_first_and_holds_for_all_that_were_joined() -> None:
    groups = grouping("z", "y", "x")
    by_pair = dict(zip(["zy", "zx", "yx"], groups.ask(9), strict=True))
    assert groups.tell(by_pair["yx"].id, True) == ("x", "y")
    assert groups.tell(by_pair["zy"].id, True) == ("y", "z")
    assert [groups.key(k) for k in "xyz"] == ["z", "z", "z"]
    assert groups.tell(by_pair["zx"].id, True) is None
    assert not groups.pending


def test_nothing_waits_any_more_when_a_join_has_made_the_rest_needless() -> None:
    groups = grouping("x", "y", "z")
    for expected in (("x", "y"), ("x", "z")):
        (call,) = groups.ask(1)
        assert pairs([call]) == [expected]
        assert groups.pending
        groups.tell(call.id, True)
    assert not groups.pending
    assert groups.ask(9) == []


@pytest.mark.parametrize("technique", ["self_consistency", "best_of_n"])
def test_a_search_whose_last_comparisons_became_needless_ends(technique: str) -> None:
    """There is no slot while its samples end, so that comparisons wait. Nothing is in flight when the last
    ones become needless, so no later event would end the search."""
    params = {
        "self_consistency": SelfConsistencyParams(n=4, width=4, stop="none"),
        "best_of_n": BestOfNParams(n=4, width=4),
    }[technique]
    limits = dataclasses.replace(LIMITS, equate=True)
    search = TECHNIQUES[technique].make(params, Ground.of(PROMPT, limits, Costs(), 7))
    scripts = [says(a, 60) for a in ("x+1", "1+x", "1+1x", "0+1+x")]
    world = World(scripts, slots=4, same=lambda _, __: True)
    world.run(search, until=lambda: len(world.in_flight) == 4)
    while world.in_flight:
        world.tell(search, world.next_event(search))
    world.slots = 1
    world.run(search)
    assert search.finished
    best = search.best()
    assert best is not None
    assert best.support == 1.0
