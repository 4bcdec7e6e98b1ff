from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from search.ballot import Ballot
from search.stopping import BetaStop, DecidedStop, counts, lead_probability


def ballot_of(votes: str) -> Ballot:
    ballot = Ballot()
    for i, key in enumerate(votes):
        ballot.add(key, i)
    return ballot


@pytest.mark.parametrize(
    ("leader", "runner_up", "value"),
    [
        (0, 0, Fraction(1, 2)),
        (3, 0, Fraction(15, 16)),
        (4, 0, Fraction(31, 32)),
        (2, 1, Fraction(11, 16)),
        (5, 5, Fraction(1, 2)),
    ],
)
def test_the_closed_form_gives_the_known_values(leader: int, runner_up: int, value: Fraction) -> None:
    assert lead_probability(leader, runner_up) == value


@pytest.mark.parametrize(("leader", "runner_up"), [(1, 0), (3, 2), (7, 3), (12, 11)])
def test_the_closed_form_equals_the_integral_of_the_beta_density(leader: int, runner_up: int) -> None:
    steps = 20_000
    points = [(i + 0.5) / steps for i in range(steps)]
    density = [p**leader * (1 - p) ** runner_up for p in points]
    upper = sum(density[steps // 2 :]) / sum(density)
    assert float(lead_probability(leader, runner_up)) == pytest.approx(upper, abs=1e-6)


def test_many_votes_are_counted_exactly() -> None:
    assert lead_probability(1024, 1024) == Fraction(1, 2)
    assert lead_probability(600, 424) > Fraction(999, 1000)


@pytest.mark.parametrize(
    ("votes", "stops"),
    [
        ("", False),
        ("a", False),
        ("aaa", False),
        ("aaaa", True),
        ("aaaab", False),
        ("aaaaaabb", False),
        ("aaaaaaabb", False),
        ("aaaaaaaabb", True),
    ],
)
def test_beta_stops_when_the_lead_is_probable_enough(votes: str, stops: bool) -> None:
    assert BetaStop(0.95).stops(ballot_of(votes), 5) is stops


def test_case_43_seven_nine_seven_is_no_reason_to_stop() -> None:
    assert not BetaStop(0.95).stops(ballot_of("797"), 13)


def test_beta_waits_for_its_least_number_of_votes() -> None:
    assert not BetaStop(0.5, min_votes=2).stops(ballot_of("a"), 3)
    assert BetaStop(0.5, min_votes=2).stops(ballot_of("aa"), 3)


@pytest.mark.parametrize(("threshold", "min_votes"), [(0.4, 2), (1.1, 2), (float("nan"), 2), (0.9, 0)])
def test_senseless_settings_are_refused(threshold: float, min_votes: int) -> None:
    with pytest.raises(ValueError, match=r"threshold|min_votes"):
        BetaStop(threshold, min_votes)


def test_counts_go_by_number_whatever_the_weights() -> None:
    ballot = Ballot()
    ballot.add("a", 0, 0.9)
    ballot.add("b", 1, 0.1)
    ballot.add("b", 2, 0.1)
    assert counts(ballot) == (2, 1)


def test_nothing_remaining_decides() -> None:
    assert DecidedStop().stops(Ballot(), 0)
    assert not DecidedStop().stops(Ballot(), 1)


def test_weights_bound_what_the_rest_can_change() -> None:
    ballot = Ballot()
    ballot.add("a", 0, 0.9)
    assert not DecidedStop().stops(ballot, 1)
    assert DecidedStop(max_weight=0.5).stops(ballot, 1)


def outcome(votes: tuple[str, ...]) -> tuple[str, bool]:
    standing = ballot_of("".join(votes)).standing()
    assert standing is not None
    return standing.key, standing.tie


def test_the_exact_rule_stops_just_when_no_continuation_changes_the_outcome() -> None:
    """Against brute force over every vote and every continuation; z is an answer nobody has given."""
    for size, remaining in itertools.product(range(1, 7), range(5)):
        for votes in itertools.product("ab", repeat=size):
            outcomes = {outcome((*votes, *more)) for more in itertools.product("abz", repeat=remaining)}
            assert DecidedStop().stops(ballot_of("".join(votes)), remaining) is (outcomes == {outcome(votes)})
