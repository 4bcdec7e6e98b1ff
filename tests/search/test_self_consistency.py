from __future__ import annotations

import random
from typing import Any

import pytest

from search.contract import Chunk, Costs, Generated, Room
from search.ground import Ground
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from tests.search.drive import LIMITS, PROMPT, Script, World, one_by_one, says

PROSE = Script(("a long text of more than one short line, ", "and no final answer in it"))


def voting(**params: Any) -> SelfConsistency:
    return SelfConsistency(SelfConsistencyParams(**params), Ground.of(PROMPT, LIMITS, Costs(), 7))


def drive(search: SelfConsistency, scripts: list[Script], order: list[int] | None = None) -> World:
    world = World(scripts)
    one_by_one(world, search, order or list(range(len(scripts))))
    return world


def ended(world: World) -> int:
    return sum(isinstance(e, Generated) for e in world.events)


def test_the_majority_wins_over_notations_of_one_number() -> None:
    search = voting(n=5, width=5, stop="none")
    drive(search, [says("3"), says("0.5"), says("1/2"), says("3"), says("\\frac{1}{2}")])
    best = search.best()
    assert best is not None
    assert (best.answer, best.key, best.support, best.tie) == ("0.5", "1/2", 3 / 5, False)


def test_case_40_dashes_group_and_the_sign_counts() -> None:
    search = voting(n=3, width=3, stop="none")
    drive(search, [says("3"), says("-3"), says("\u22123")])
    assert [b.fate for b in search.branches()] == ["outvoted", "chosen", "agreed"]


def test_case_42_alike_texts_with_other_answers_do_not_vote_together() -> None:
    search = voting(n=3, width=3, stop="none")
    drive(search, [says("42", 60), says("24", 60), says("24", 60)])
    best = search.best()
    assert best is not None
    assert (best.answer, best.support) == ("24", 2 / 3)


def test_a_tie_goes_to_the_earliest_sample_whatever_ended_first() -> None:
    for order in ([0, 1], [1, 0]):
        search = voting(n=2, width=2, stop="none")
        drive(search, [says("7"), says("9")], order)
        best = search.best()
        assert best is not None
        assert (best.answer, best.tie, best.support) == ("7", True, 0.5)


def test_case_45_empty_answers_never_win() -> None:
    search = voting(n=5, width=5, stop="none", give_up_after=5)
    empty = Script(("\\boxed{", "}"))
    drive(search, [empty, empty, says("7"), empty, Script((" ",))])
    best = search.best()
    assert best is not None
    assert (best.answer, best.support) == ("7", 1.0)
    assert [b.fate for b in search.branches()].count("no_answer") == 4


def test_beta_stops_early_and_returns_what_is_in_flight_for_cancelling() -> None:
    search = voting(n=16, width=6)
    world = drive(search, [says("7")])
    assert search.stop_reason == "confident"
    assert [b.answer for b in search.branches()].count("7") == 4
    assert len(world.cancelled) == 6 - 1
    stopped = [b for b in search.branches() if b.fate == "stopped"]
    assert len(stopped) == 5
    assert all(b.reason == "confident" for b in stopped)


def test_case_43_seven_nine_seven_does_not_stop_the_vote() -> None:
    search = voting(n=16, width=1)
    world = World([says("7"), says("9"), says("7"), says("5")])
    world.run(search, until=lambda: ended(world) == 3)
    assert not search.finished


def test_the_vote_ends_when_the_rest_cannot_change_it() -> None:
    search = voting(n=5, width=1, stop="none")
    drive(search, [says("7")])
    assert search.stop_reason == "decided"
    assert len(search.branches()) == 3


def test_without_any_answer_the_first_complete_text_is_the_best() -> None:
    search = voting(n=16, width=2)
    drive(search, [PROSE], [1, 0])
    assert search.stop_reason == "no_answers"
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer, best.node) == (True, None, search.branches()[0].nodes[-1])
    assert len(search.branches()) <= 4


def test_one_answer_keeps_the_vote_going_among_texts_without() -> None:
    search = voting(n=4, width=1, stop="none", give_up_after=2)
    drive(search, [PROSE, says("7"), PROSE, PROSE])
    best = search.best()
    assert best is not None
    assert best.answer == "7"


def test_case_28_a_sample_that_ended_early_stays_a_candidate() -> None:
    search = voting(n=3, width=3, stop="none")
    world = World([says("7", 2), says("8", 500), says("9", 500)])
    world.run(search)
    best = search.best()
    assert best is not None
    assert (best.answer, best.complete) == ("7", True)
    assert [b.fate for b in search.branches()] == ["chosen", "truncated", "truncated"]


def test_a_late_event_of_a_cancelled_call_is_ignored() -> None:
    search = voting(n=16, width=8)
    world = World([says("7")], late=True, rng=random.Random(1))
    world.run(search)
    before = (search.best(), search.tree.generated_tokens)
    assert world.cancelled
    for call in world.cancelled:
        assert search.tell(Chunk(call, (9,), "\\boxed{666}")) == []
        assert search.tell(Generated(call, "stop")) == []
    assert (search.best(), search.tree.generated_tokens) == before


def test_gain_falls_as_the_vote_agrees_and_is_zero_at_the_end() -> None:
    search = voting(n=16, width=1)
    world = World([says("7")])
    gains = []
    for votes in range(1, 5):
        world.run(search, until=lambda v=votes: ended(world) >= v)  # type: ignore[misc]
        gains.append(search.gain())
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == 0


def test_the_seconds_of_the_room_play_no_part() -> None:
    one, other = voting(), voting()
    assert one.ask(Room(4, 1000, 1000, seconds=0.1)) == other.ask(Room(4, 1000, 1000))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 1025),
        ("n", 2.5),
        ("n", True),
        ("width", 0),
        ("stop", "sometimes"),
        ("threshold", 0.2),
        ("threshold", float("nan")),
        ("min_votes", 0),
        ("give_up_after", 0),
        ("max_retries", -1),
    ],
)
def test_params_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SelfConsistencyParams(**{field: value})  # type: ignore[arg-type]


def test_a_query_that_most_samples_write_no_answer_to_is_not_voted_on() -> None:
    search = voting(n=8, width=3, give_up_after=2)
    prose = Script(("a text that ends without", " any final answer in it"))
    drive(search, [says("7"), prose, prose, prose, says("7")], [0, 1, 2, 3, 4])
    assert search.stop_reason == "no_answers"
    assert len([b for b in search.branches() if b.fate == "no_answer"]) == 2
    best = search.best()
    assert best is not None
    assert best.answer == "7"
