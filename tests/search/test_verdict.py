from __future__ import annotations

import math
from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.verdict import Chain, Verdict

RIGHT, WRONG, ERROR = Verdict("right"), Verdict("wrong"), Verdict("error", reason="no sandbox")

verdicts = st.one_of(
    st.sampled_from([RIGHT, WRONG, ERROR]),
    st.floats(0, 1).map(lambda s: Verdict("unsure", s)),
)
modes: st.SearchStrategy[Literal["fallback", "all"]] = st.sampled_from(["fallback", "all"])
named = st.dictionaries(st.sampled_from([f"v{i}" for i in range(6)]), verdicts, min_size=1)


def unsure(score: float) -> Verdict:
    return Verdict("unsure", score)


@pytest.mark.parametrize(
    ("kind", "score"),
    [
        ("unsure", None),
        ("unsure", 1.1),
        ("unsure", math.nan),
        ("right", 0.5),
        ("error", 0.0),
        ("maybe", None),
    ],
)
def test_a_verdict_that_means_nothing_is_refused(kind: str, score: float | None) -> None:
    with pytest.raises(ValueError, match=r"score must|kind must be one of right, wrong, unsure, error"):
        Verdict(kind, score)  # type: ignore[arg-type]


def test_a_chain_refuses_what_it_cannot_honour_and_names_the_field() -> None:
    for names in ((), ("a", "a"), ("",), tuple(map(str, range(17)))):
        with pytest.raises(ValueError, match="names must"):
            Chain(names)
    with pytest.raises(ValueError, match="mode must be one of fallback, all"):
        Chain(("a",), "any")  # type: ignore[arg-type]
    for confident in (0.5, 1.01, math.nan):
        with pytest.raises(ValueError, match="confident must"):
            Chain(("a",), confident=confident)
    with pytest.raises(ValueError, match="by b"):
        Chain(("a",)).judge({"b": RIGHT})


def test_fallback_asks_one_after_another_until_one_is_definite() -> None:
    chain = Chain(("a", "b", "c"))
    assert chain.pending({}) == ("a",)
    assert chain.pending({"a": ERROR}) == ("b",)
    assert chain.pending({"a": ERROR, "b": unsure(0.4)}) == ("c",)
    assert chain.pending({"a": ERROR, "b": RIGHT}) == ()
    judged = chain.judge({"b": RIGHT, "a": ERROR})
    assert (judged.verdict, judged.decided_by, judged.failed) == (RIGHT, ("b",), ("a",))
    assert judged.complete


def test_fallback_takes_the_first_definite_verdict_of_the_order_even_when_a_later_one_came_too() -> None:
    judged = Chain(("a", "b")).judge({"b": WRONG, "a": RIGHT})
    assert judged.verdict == RIGHT
    assert judged.disagreement


def test_all_asks_everybody_at_once_and_one_wrong_outweighs_any_right() -> None:
    chain = Chain(("a", "b", "c"), "all")
    assert chain.pending({}) == ("a", "b", "c")
    assert chain.pending({"b": WRONG}) == ("a", "c")
    judged = chain.judge({"a": RIGHT, "b": WRONG, "c": RIGHT})
    assert judged.verdict.kind == "wrong"
    assert judged.decided_by == ("b",)
    assert judged.disagreement
    assert chain.judge({"a": RIGHT, "b": ERROR, "c": unsure(0.5)}).verdict.kind == "right"


@given(modes)
def test_only_unsure_gives_the_mean_of_the_scores_and_failures_are_not_in_it(
    mode: Literal["fallback", "all"],
) -> None:
    judged = Chain(("a", "b", "c"), mode).judge({"a": unsure(0.2), "b": ERROR, "c": unsure(0.6)})
    assert judged.verdict.kind == "unsure"
    assert judged.verdict.score == pytest.approx(0.4)
    assert judged.decided_by == ("a", "c")
    assert not judged.disagreement


def test_what_has_not_been_asked_yet_leaves_the_judgement_incomplete() -> None:
    chain = Chain(("a", "b"), "all")
    nobody = chain.judge({})
    assert (nobody.verdict.kind, nobody.complete) == ("error", False)
    assert not chain.judge({"a": RIGHT}).complete
    assert not Chain(("a", "b")).judge({"a": unsure(0.9)}).complete


@pytest.mark.parametrize(
    ("definite", "score", "flag"),
    [
        (WRONG, 0.9, True),
        (WRONG, 0.89, False),
        (RIGHT, 0.1, True),
        (RIGHT, 0.11, False),
        (RIGHT, 0.9, False),
        (ERROR, 1.0, False),
    ],
)
@pytest.mark.parametrize("mode", ["fallback", "all"])
def test_a_confident_score_against_a_definite_verdict_is_a_disagreement(
    definite: Verdict, score: float, flag: bool, mode: Literal["fallback", "all"]
) -> None:
    assert Chain(("a", "b"), mode).judge({"a": unsure(score), "b": definite}).disagreement is flag


def test_reasons_are_kept_with_the_names_of_those_who_gave_them() -> None:
    chain = Chain(("a", "b", "c"), "all")
    judged = chain.judge({"a": Verdict("wrong", reason="7 is not 8"), "b": ERROR, "c": RIGHT})
    assert judged.verdict.reason == "a: 7 is not 8"
    assert chain.judge(dict.fromkeys("abc", ERROR)).verdict.reason.startswith("a: no sandbox; b: ")


@given(named, st.randoms())
def test_in_mode_all_neither_the_order_of_the_chain_nor_of_the_verdicts_matters(
    given_verdicts: dict[str, Verdict], chance: Random
) -> None:
    names = list(given_verdicts)
    first = Chain(tuple(names), "all").judge(given_verdicts)
    chance.shuffle(names)
    second = Chain(tuple(names), "all").judge({name: given_verdicts[name] for name in names[::-1]})
    assert (first.verdict.kind, first.verdict.score) == (second.verdict.kind, second.verdict.score)
    assert first.disagreement == second.disagreement
    assert sorted(first.decided_by) == sorted(second.decided_by)


@given(named, modes)
def test_an_error_never_becomes_wrong_or_right(
    given_verdicts: dict[str, Verdict], mode: Literal["fallback", "all"]
) -> None:
    judged = Chain(tuple(given_verdicts), mode).judge(given_verdicts)
    kinds = {v.kind for v in given_verdicts.values()}
    assert judged.verdict.kind in kinds
    if judged.verdict.kind == "error":
        assert kinds == {"error"}
    assert {given_verdicts[name].kind for name in judged.decided_by} <= {judged.verdict.kind} - {"error"}


@given(named, modes, st.integers(0, 6))
def test_a_failing_verifier_anywhere_in_the_chain_changes_nothing_but_the_list_of_failures(
    given_verdicts: dict[str, Verdict], mode: Literal["fallback", "all"], at: int
) -> None:
    names = list(given_verdicts)
    before = Chain(tuple(names), mode).judge(given_verdicts)
    names.insert(at, "failing")
    after = Chain(tuple(names), mode).judge({**given_verdicts, "failing": ERROR})
    if before.verdict.kind != "error":
        assert after.verdict == before.verdict
    assert (after.decided_by, after.disagreement) == (before.decided_by, before.disagreement)
    assert "failing" in after.failed
    assert set(before.failed) == set(after.failed) - {"failing"}


@given(named, modes)
def test_running_what_is_pending_ends_and_runs_nobody_twice(
    given_verdicts: dict[str, Verdict], mode: Literal["fallback", "all"]
) -> None:
    chain = Chain(tuple(given_verdicts), mode)
    got: dict[str, Verdict] = {}
    for _ in range(len(given_verdicts) + 1):
        pending = chain.pending(got)
        assert chain.judge(got).complete is (not pending)
        if not pending:
            break
        assert not set(pending) & set(got)
        got |= {name: given_verdicts[name] for name in pending}
    whole = chain.judge(given_verdicts)
    assert (chain.judge(got).verdict, chain.judge(got).decided_by) == (whole.verdict, whole.decided_by)
