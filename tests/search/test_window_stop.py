from __future__ import annotations

import itertools

import pytest

from search.ballot import Ballot
from search.window_stop import WindowStop


def ballot_of(votes: dict[int, str]) -> Ballot:
    ballot = Ballot()
    for number, key in votes.items():
        ballot.add(key, number)
    return ballot


def test_no_votes_do_not_agree() -> None:
    assert not WindowStop(2).stops(Ballot(), 5)


@pytest.mark.parametrize(
    ("votes", "stops"),
    [
        ({0: "a", 1: "a"}, False),
        ({0: "a", 1: "a", 2: "a"}, True),
        ({0: "a", 1: "b", 2: "a"}, False),
        ({1: "a", 2: "a", 3: "a"}, False),
        ({0: "b", 3: "a", 4: "a", 5: "a"}, True),
        ({0: "a", 1: "b", 2: "a", 3: "a", 4: "a"}, False),
    ],
)
def test_all_of_one_window_by_sample_number_must_agree(votes: dict[int, str], stops: bool) -> None:
    assert WindowStop(3).stops(ballot_of(votes), 10) is stops


def test_the_order_of_arrival_plays_no_part() -> None:
    votes = {0: "a", 1: "a", 2: "a", 4: "b"}
    for order in itertools.permutations(votes):
        assert WindowStop(3).stops(ballot_of({i: votes[i] for i in order}), 10)


def test_early_arrivals_make_no_window_of_their_own() -> None:
    """Three short samples that agree came first, but they are of different windows."""
    assert not WindowStop(3).stops(ballot_of({2: "a", 5: "a", 8: "a"}), 10)


def test_a_window_that_agrees_on_another_answer_than_the_leading_one_does_not_stop() -> None:
    votes = {0: "a", 2: "b", 3: "b", 4: "a", 5: "c", 6: "a"}
    assert not WindowStop(2).stops(ballot_of(votes), 9)
    assert WindowStop(2).stops(ballot_of({**votes, 1: "a"}), 9)


def test_case_43_seven_nine_seven_is_no_reason_to_stop() -> None:
    assert not WindowStop(3).stops(ballot_of({0: "7", 1: "9", 2: "7"}), 13)


@pytest.mark.parametrize("window", [0, 1, 2000])
def test_senseless_windows_are_refused(window: int) -> None:
    with pytest.raises(ValueError, match="window"):
        WindowStop(window)
