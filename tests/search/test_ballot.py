from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.ballot import Ballot, Standing


def vote(*votes: tuple[str, int, float]) -> Ballot:
    ballot = Ballot()
    for key, sample, weight in votes:
        ballot.add(key, sample, weight)
    return ballot


def test_no_votes_have_no_standing() -> None:
    assert Ballot().standing() is None


def test_the_most_votes_win_and_the_share_is_reported() -> None:
    ballot = vote(("a", 0, 1), ("b", 1, 1), ("b", 2, 1))
    assert ballot.standing() == Standing("b", 2.0, 2 / 3, (1, 2), tie=False)


def test_a_tie_goes_to_the_earliest_sample_and_is_reported() -> None:
    ballot = vote(("b", 3, 1), ("a", 1, 1))
    assert ballot.standing() == Standing("a", 1.0, 0.5, (1,), tie=True)


def test_weight_beats_number() -> None:
    standing = vote(("a", 0, 0.2), ("a", 1, 0.2), ("b", 2, 0.9)).standing()
    assert standing is not None
    assert standing.key == "b"


def test_shares_of_votes_that_all_weigh_nothing_go_by_number() -> None:
    standing = vote(("a", 0, 0), ("a", 1, 0), ("b", 2, 0)).standing()
    assert standing == Standing("a", 0.0, 2 / 3, (0, 1), tie=True)


@pytest.mark.parametrize(
    ("key", "weight"), [("", 1.0), ("a", -0.1), ("a", float("nan")), ("a", float("inf"))]
)
def test_a_vote_without_answer_or_with_a_senseless_weight_is_refused(key: str, weight: float) -> None:
    with pytest.raises(ValueError, match=r"answer|weight"):
        Ballot().add(key, 0, weight)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_outcome_does_not_depend_on_the_order_of_votes(
    votes: list[tuple[str, float]], rng: object
) -> None:
    numbered = [(key, i, weight) for i, (key, weight) in enumerate(votes)]
    shuffled = list(numbered)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert vote(*numbered).standing() == vote(*shuffled).standing()


def test_a_sample_votes_once_and_its_weight_may_be_set_anew() -> None:
    ballot = Ballot()
    ballot.add("a", 0, 0.5, open=True)
    ballot.add("b", 1, 0.7)
    assert (len(ballot), ballot.open) == (2, 1)
    ballot.add("a", 0, 0.9)
    assert (len(ballot), ballot.open) == (2, 0)
    assert ballot.standing() == Standing("a", 0.9, 0.9 / 1.6, (0,), tie=False)


def test_a_copy_goes_its_own_way() -> None:
    ballot = vote(("a", 0, 1))
    copy = ballot.copy()
    copy.add("b", 1, 2)
    copy.add("a", 2, 0.5)
    assert ballot.standing() == Standing("a", 1.0, 1.0, (0,), tie=False)
    assert len(copy) == 3


def test_merged_groups_keep_all_votes_and_the_earliest_number() -> None:
    ballot = vote(("a", 3, 0.25), ("b", 1, 0.5), ("c", 2, 0.75))
    ballot.merge("b", "a")
    ballot.merge("nothing", "a")
    assert ballot.standing() == Standing("a", 0.75, 0.5, (1, 3), tie=True)


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_a_senseless_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        Ballot().add("a", 0, 1.0, confidence)
