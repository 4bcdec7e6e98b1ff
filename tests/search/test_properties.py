"""Any technique in any world: the contract's promises, whatever comes back in whatever order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.best_of_n import BestOfNParams
from search.contract import Candidate, Costs, Generate, Search
from search.deepconf import DeepConfParams
from search.extract import ThinkingMarkers
from search.log import EventLog, Header, build, record, replay
from search.sample import SampleLimits
from search.self_consistency import SelfConsistencyParams
from search.single import SingleParams
from tests.search.confident_world import ConfidentWorld
from tests.search.drive import PROMPT, Script, one_by_one
from tests.search.profile import EXAMPLES

PROFILE = settings(
    derandomize=True, deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow]
)

COUNT = st.integers(1, 9)
RETRIES = st.integers(0, 3)
PARAMS: st.SearchStrategy[Any] = st.one_of(
    st.builds(SingleParams, RETRIES),
    st.builds(
        SelfConsistencyParams,
        n=COUNT,
        width=COUNT,
        first=st.integers(0, 4),
        pace=st.sampled_from(["full", "needed"]),
        stop=st.sampled_from(["beta", "window", "confidence", "none"]),
        threshold=st.sampled_from([0.5, 0.8, 0.95]),
        min_votes=st.integers(1, 3),
        window=st.integers(2, 4),
        weight=st.sampled_from(["count", "confidence", "score"]),
        confidence_from=st.sampled_from(["logprob", "score", "both"]),
        sharpness=st.sampled_from([0.0, 0.5, 1.0, 30.0]),
        tool_vote=st.sampled_from(["majority", "refuse"]),
        give_up_after=st.integers(1, 4),
        max_retries=RETRIES,
    ),
    st.builds(
        BestOfNParams,
        n=COUNT,
        width=COUNT,
        by=st.sampled_from(["score", "check", "compare"]),
        aggregate=st.sampled_from(["weighted", "max"]),
        score_batch=st.sampled_from([1, 2, 16]),
        finalists=st.integers(1, 4),
        max_retries=RETRIES,
    ),
    st.builds(
        DeepConfParams,
        n=COUNT,
        width=COUNT,
        mode=st.just("online"),
        eta=st.sampled_from([10.0, 50.0, 90.0, 100.0]),
        window=st.sampled_from([1, 3, 20, 2048]),
        top=st.sampled_from([1, 5]),
        warmup=st.integers(1, 5),
        tau=st.sampled_from([0.5, 0.8, 1.0]),
        max_retries=RETRIES,
    ),
    st.builds(
        DeepConfParams,
        n=COUNT,
        width=COUNT,
        mode=st.just("offline"),
        eta=st.sampled_from([10.0, 50.0, 100.0]),
        window=st.sampled_from([1, 3, 20, 2048]),
        measure=st.sampled_from(["lowest", "tail", "bottom", "mean"]),
        bottom_percent=st.sampled_from([10.0, 50.0]),
        top=st.sampled_from([1, 5]),
        max_retries=RETRIES,
    ),
)
NAMES = {
    SingleParams: "single",
    SelfConsistencyParams: "self_consistency",
    BestOfNParams: "best_of_n",
    DeepConfParams: "deepconf",
}
ENDINGS = st.sampled_from(
    [
        "\\boxed{7}",
        "\\boxed{8}",
        "\\boxed{1/2}",
        "\\boxed{}",
        "",
        " ",
        "<think>",
        "</think>\nAnswer: 9",
        "prose",
    ]
)
SCRIPTS = st.lists(
    st.builds(
        lambda length, ending, score, fails, score_fails: Script(
            (*["word "] * length, ending), score, fails, score_fails
        ),
        st.integers(0, 130) | st.integers(200, 450),
        ENDINGS,
        st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
        st.none() | st.none() | st.integers(0, 60),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
SEEDS = st.integers(0, 2**32)
RELEASES = st.sampled_from([0.0, 0.0, 0.2, 1.0])
TIGHT = st.integers(0, 900) | st.just(100_000)


def header(params: Any, score_tokens: int = 0, limit: int = 90, whole: bool = False) -> Header:
    limits = SampleLimits(100 if limit == 90 else limit, len(PROMPT) + limit, ThinkingMarkers(), whole)
    return Header(NAMES[type(params)], params, limits, Costs(score_tokens), 7, PROMPT)


def started(params: Any) -> int:
    return int(getattr(params, "n", 1)) + int(params.max_retries)


@PROFILE
@given(
    PARAMS,
    SCRIPTS,
    SEEDS,
    TIGHT,
    TIGHT,
    st.integers(1, 12),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from([1, 90, 400]),
    st.booleans(),
    RELEASES,
)
def test_a_search_keeps_within_any_room_and_ends(
    params: Any,
    scripts: Sequence[Script],
    seed: int,
    tokens: int,
    kv: int,
    slots: int,
    score_tokens: int,
    squeeze: bool,
    limit: int,
    whole: bool,
    releases: float,
) -> None:
    head = header(params, score_tokens, limit, whole)
    search = build(head)
    world = ConfidentWorld(
        scripts,
        costs=head.costs,
        tokens=tokens,
        kv_tokens=kv + len(PROMPT),
        slots=slots,
        rng=random.Random(seed),
        squeeze=squeeze,
        late=True,
        releases=releases,
    )
    world.run(search)
    if whole:
        assert all(len(b.nodes) == 1 for b in search.branches())
        assert all(c.max_new_tokens == limit for c in world.asked if isinstance(c, Generate))
    assert len(search.branches()) <= started(params)
    assert sum(b.tokens for b in search.branches()) == search.tree.generated_tokens
    if search.finished:
        assert search.tree.live_tokens in ((0, len(PROMPT)) if releases else (len(PROMPT),))
        assert all(b.fate != "running" for b in search.branches())
    if tokens == 100_000 and kv >= limit:
        assert search.finished
    best = search.best()
    if best is not None and best.complete and search.tree.path_text(best.node).strip():
        assert [b.fate for b in search.branches()].count("chosen") == 1
    for branch in search.branches():
        if branch.fate in (
            "failed",
            "truncated",
            "stopped",
            "outvoted",
            "outscored",
            "no_answer",
            "filtered",
        ):
            assert branch.reason


@PROFILE
@given(PARAMS, SCRIPTS, SEEDS, st.integers(0, 120))
def test_a_search_that_is_cut_off_anywhere_has_its_best_and_its_branches(
    params: Any, scripts: Sequence[Script], seed: int, cut: int
) -> None:
    search = build(header(params))
    world = ConfidentWorld(scripts, rng=random.Random(seed))
    world.run(search, until=lambda: len(world.events) >= cut)
    complete = [
        b for b in search.branches() if b.fate in ("chosen", "agreed", "outvoted", "outscored", "no_answer")
    ]
    best = search.best()
    if search.tree.generated_tokens:
        assert best is not None
    if any(b.answer is not None for b in complete):
        assert best is not None
        assert best.answer is not None


@PROFILE
@given(PARAMS, SCRIPTS, SEEDS, TIGHT, TIGHT, st.integers(0, 40), st.booleans(), RELEASES)
def test_a_log_round_trips_and_replays_the_same_asks_byte_for_byte(
    params: Any,
    scripts: Sequence[Script],
    seed: int,
    tokens: int,
    kv: int,
    score_tokens: int,
    whole: bool,
    releases: float,
) -> None:
    head = header(params, score_tokens, whole=whole)
    recorder = record(head, 100_000)
    ConfidentWorld(
        scripts,
        costs=head.costs,
        tokens=tokens,
        kv_tokens=kv + len(PROMPT),
        rng=random.Random(seed),
        squeeze=True,
        late=True,
        releases=releases,
    ).run(recorder)
    lines = recorder.log.to_lines()
    log = EventLog.from_lines(lines)
    assert log == recorder.log
    assert log.to_lines() == lines
    again = replay(log)
    assert again.tree.live_tokens == recorder.tree.live_tokens
    assert again.best() == recorder.best()
    assert again.branches() == recorder.branches()


@PROFILE
@given(PARAMS, SCRIPTS, SEEDS, st.integers(0, 1500), TIGHT, st.integers(1, 60), st.booleans(), RELEASES)
def test_every_answer_that_was_paid_for_is_scored(
    params: Any,
    scripts: Sequence[Script],
    seed: int,
    tokens: int,
    kv: int,
    score_tokens: int,
    whole: bool,
    releases: float,
) -> None:
    head = header(params, score_tokens, whole=whole)
    search = build(head)
    working = [dataclasses.replace(s, score_fails=False) for s in scripts]
    world = ConfidentWorld(
        working,
        costs=head.costs,
        tokens=tokens,
        kv_tokens=kv + len(PROMPT),
        rng=random.Random(seed),
        releases=releases,
    )
    world.run(search)
    if isinstance(params, BestOfNParams) and params.by == "score":
        assert all(b.score is not None for b in search.branches() if b.answer is not None)


def winner(params: Any, scripts: Sequence[Script], order: Sequence[int]) -> tuple[Search, Candidate | None]:
    search = build(header(params))
    one_by_one(ConfidentWorld(scripts), search, order)
    return search, search.best()


@pytest.mark.parametrize(
    "params",
    [
        BestOfNParams(n=6, width=6, aggregate="weighted", max_retries=0),
        BestOfNParams(n=6, width=6, aggregate="max", max_retries=0),
        SelfConsistencyParams(n=6, width=6, stop="none", give_up_after=100, max_retries=0),
        SelfConsistencyParams(
            n=6, width=6, stop="none", weight="confidence", give_up_after=100, max_retries=0
        ),
        SelfConsistencyParams(n=6, width=6, stop="none", weight="score", give_up_after=100, max_retries=0),
        DeepConfParams(n=6, width=6, mode="offline", eta=50.0, window=3, max_retries=0),
    ],
    ids=["weighted", "max", "vote", "vote by confidence", "vote by score", "deepconf"],
)
@PROFILE
@given(scripts=SCRIPTS, order=st.permutations(range(6)))
def test_the_winner_of_a_fixed_set_of_samples_does_not_depend_on_their_order(
    params: Any, scripts: Sequence[Script], order: Sequence[int]
) -> None:
    search, one = winner(params, scripts, range(6))
    _, other = winner(params, scripts, order)
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    assert (one.key, one.complete, one.tie) == (other.key, other.complete, other.tie)
    if search.stop_reason == "all_done" and isinstance(params, BestOfNParams):
        assert (one.score, one.support) == (other.score, other.support)
