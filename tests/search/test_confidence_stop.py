from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.ballot import Ballot
from search.confidence_stop import EDGE, ConfidenceStop, posterior

Sure = tuple[str, float | None]


def ballot_of(votes: Sequence[Sure]) -> Ballot:
    ballot = Ballot()
    for i, (key, confidence) in enumerate(votes):
        ballot.add(key, i, 1.0, confidence)
    return ballot


def by_hand(votes: list[tuple[str, float]]) -> dict[str, float]:
    """Bayes' rule written out, without logarithms: a uniform prior over the answers and an unseen one."""
    answers = sorted({key for key, _ in votes})
    candidates = [*answers, "unseen"]
    likelihoods = {
        a: math.prod(c if key == a else (1 - c) / (len(candidates) - 1) for key, c in votes)
        for a in candidates
    }
    total = sum(likelihoods.values())
    return {a: likelihoods[a] / total for a in answers}


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.01, 0.99)), min_size=1, max_size=8))
def test_the_posterior_is_bayes_rule(votes: list[tuple[str, float]]) -> None:
    assert dict(posterior(ballot_of(list(votes)))) == pytest.approx(by_hand(votes), rel=1e-9)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), min_size=1, max_size=10),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_votes_changes_not_one_bit(votes: list[Sure], rng: object) -> None:
    numbered = list(enumerate(votes))
    rng.shuffle(numbered)  # type: ignore[attr-defined]
    shuffled = Ballot()
    for i, (key, confidence) in numbered:
        shuffled.add(key, i, 1.0, confidence)
    assert dict(posterior(shuffled)) == dict(posterior(ballot_of(votes)))


def test_one_sample_makes_its_answer_as_probable_as_it_is_sure() -> None:
    assert posterior(ballot_of([("a", 0.7)]))["a"] == pytest.approx(0.7)
    assert ConfidenceStop(0.7).stops(ballot_of([("a", 0.7001)]), 15)
    assert not ConfidenceStop(0.7).stops(ballot_of([("a", 0.69)]), 15)


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_no_confidence_makes_anything_certain(confidence: float) -> None:
    value = posterior(ballot_of([("a", confidence)]))["a"]
    assert value == pytest.approx(abs(confidence - EDGE))


def test_many_agreeing_samples_neither_overflow_nor_exceed_one() -> None:
    value = posterior(ballot_of([("a", 0.999)] * 1024 + [("b", 0.001)] * 4))["a"]
    assert value <= 1
    assert value == pytest.approx(1)


def test_votes_without_a_confidence_and_open_ones_say_nothing() -> None:
    known = ballot_of([("a", 0.6)])
    more = ballot_of([("a", 0.6), ("a", None)])
    more.add("a", 7, 1.0, 0.9, open=True)
    assert posterior(more)["a"] == pytest.approx(posterior(known)["a"])
    assert not ConfidenceStop(0.9, min_votes=1).stops(ballot_of([("a", None)] * 9), 1)


def test_unsure_agreement_is_worth_less_than_sure_agreement() -> None:
    unsure = posterior(ballot_of([("a", 0.4)] * 3))["a"]
    sure = posterior(ballot_of([("a", 0.8)] * 3))["a"]
    assert unsure < 0.5 < 0.95 < sure


def test_case_43_seven_nine_seven_is_no_reason_to_stop_when_all_are_as_sure() -> None:
    for confidence in (0.5, 0.8, 0.9):
        votes: list[Sure] = [(key, confidence) for key in "797"]
        assert not ConfidenceStop(0.95).stops(ballot_of(votes), 13)


def test_it_stops_only_for_the_answer_that_leads_the_vote() -> None:
    votes: list[Sure] = [("a", 0.1), ("a", 0.1), ("b", 0.999)]
    assert posterior(ballot_of(votes))["b"] > 0.95
    assert not ConfidenceStop(0.95).stops(ballot_of(votes), 13)


def test_it_waits_for_its_least_number_of_settled_votes() -> None:
    ballot = ballot_of([("a", 0.99)])
    ballot.add("a", 1, 1.0, 0.99, open=True)
    assert not ConfidenceStop(0.9, min_votes=2).stops(ballot, 5)
    ballot.add("a", 1, 1.0, 0.99)
    assert ConfidenceStop(0.9, min_votes=2).stops(ballot, 5)


def test_agreement_raises_and_contradiction_lowers_the_leader() -> None:
    """Over all votes of up to four samples that are equally sure."""
    for size in range(1, 4):
        for keys in itertools.product("ab", repeat=size):
            before = posterior(ballot_of([(k, 0.8) for k in keys]))
            if "a" not in before:
                continue
            agreed = posterior(ballot_of([(k, 0.8) for k in (*keys, "a")]))
            against = posterior(ballot_of([(k, 0.8) for k in (*keys, "b")]))
            assert against["a"] < before["a"] + 1e-12
            assert agreed["a"] > before["a"] - 1e-12


@pytest.mark.parametrize(("threshold", "min_votes"), [(0.4, 1), (1.1, 1), (float("nan"), 1), (0.9, 0)])
def test_senseless_settings_are_refused(threshold: float, min_votes: int) -> None:
    with pytest.raises(ValueError, match=r"threshold|min_votes"):
        ConfidenceStop(threshold, min_votes)
