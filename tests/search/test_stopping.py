from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from search.ballot import Ballot
from search.confidence_stop import ConfidenceStop
from search.stopping import BetaStop, DecidedStop, counts, lead_probability, least_votes
from search.window_stop import WindowStop


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


WEIGHTS = (0.0, 0.5, 1.0)


def weighted(votes: tuple[tuple[str, float], ...]) -> Ballot:
    ballot = Ballot()
    for i, (key, weight) in enumerate(votes):
        ballot.add(key, i, weight)
    return ballot


def test_the_exact_rule_holds_for_weighted_votes_too() -> None:
    """Against brute force: it stops only if no continuation of any weights changes the outcome, and whenever
    none of full weights does."""
    one = [(key, weight) for key in "ab" for weight in WEIGHTS]
    more = [(key, weight) for key in "abz" for weight in WEIGHTS]
    for size, remaining in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 1)):
        for votes in itertools.product(one, repeat=size):
            before = weighted(votes).standing()
            assert before is not None
            after = set()
            for rest in itertools.product(more, repeat=remaining):
                standing = weighted((*votes, *rest)).standing()
                assert standing is not None
                after.add((standing.key, standing.tie))
            unchanged = after == {(before.key, before.tie)}
            if remaining:
                assert DecidedStop().stops(weighted(votes), remaining) is unchanged
            else:
                assert DecidedStop().stops(weighted(votes), remaining)


def test_an_open_vote_may_still_weigh_nothing_or_everything() -> None:
    ballot = weighted((("a", 1.0), ("a", 1.0), ("b", 0.5)))
    assert DecidedStop().stops(ballot, 1)
    ballot.add("b", 3, 0.5, open=True)
    assert not DecidedStop().stops(ballot, 1)
    assert DecidedStop().stops(ballot, 0)
    ballot.add("a", 4, 0.5, open=True)
    assert DecidedStop().stops(ballot, 0)
    ballot.add("b", 3, 1.0)
    ballot.add("b", 5, 0.5, open=True)
    assert not DecidedStop().stops(ballot, 0)


def test_votes_that_are_open_are_not_over_though_nothing_remains() -> None:
    ballot = Ballot()
    ballot.add("a", 0, 0.5, open=True)
    ballot.add("b", 1, 0.9)
    assert not DecidedStop().stops(ballot, 0)


def test_beta_looks_at_the_leader_of_the_vote_not_at_the_most_numerous() -> None:
    ballot = weighted((("a", 0.1),) * 6 + (("b", 1.0),))
    assert not BetaStop(0.95).stops(ballot, 9)


@pytest.mark.parametrize(
    ("votes", "coming", "needed"),
    [
        ("", range(9), 4),
        ("a", range(1, 9), 3),
        ("aaa", range(3, 9), 1),
        ("ab", range(2, 9), 5),
        ("a", [1], 1),
    ],
)
def test_the_least_votes_are_those_of_full_agreement(votes: str, coming: range, needed: int) -> None:
    assert least_votes([BetaStop(0.95)], ballot_of(votes), list(coming), 16) == needed


def test_the_least_votes_of_a_window_are_those_that_it_lacks() -> None:
    ballot = ballot_of("a")
    assert least_votes([WindowStop(4)], ballot, [1, 2, 3, 4, 5], 15) == 3
    assert least_votes([WindowStop(4)], ballot_of("ab"), [2, 3, 4, 5, 6, 7], 14) == 6


def test_the_least_votes_by_confidence_go_by_how_sure_the_leader_was() -> None:
    def lead(confidence: float) -> Ballot:
        ballot = Ballot()
        ballot.add("a", 0, 1.0, confidence)
        return ballot

    unsure, sure = (least_votes([ConfidenceStop(0.95)], lead(c), range(1, 16), 15) for c in (0.5, 0.9))
    assert unsure > sure == 1


def test_asking_for_the_least_votes_leaves_the_ballot_alone() -> None:
    ballot = ballot_of("ab")
    least_votes([BetaStop(0.95)], ballot, range(2, 9), 14)
    assert len(ballot) == 2
    assert ballot.standing() == ballot_of("ab").standing()
