"""Composites in any world: what holds for every search holds for searches within searches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.cascade import CascadeParams
from search.contract import Costs, Failed, Generate, Search
from search.extract import ThinkingMarkers
from search.log import EventLog, Header, build, record, replay
from search.nesting import Stage
from search.refine import RefineParams
from search.registry import TECHNIQUES
from search.sample import SampleLimits
from tests.search.drive import PROMPT, Script, World
from tests.search.steps_world import STEP_LIMITS, StepWorld
from tests.search.think_world import MARKERS, THINK_PHRASES, ThinkWorld

PROFILE = settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
COSTS = Costs(score_tokens=4, check_tokens=3)
NAMES = {RefineParams: "refine", CascadeParams: "cascade"}

RETRIES = st.integers(0, 2)
COUNT = st.integers(1, 4)
LEAVES = st.one_of(
    st.builds(lambda r: Stage("single", {"max_retries": r}), RETRIES),
    st.builds(
        lambda n, w, r: Stage("self_consistency", {"n": n, "width": w, "max_retries": r}),
        COUNT,
        COUNT,
        RETRIES,
    ),
    st.builds(
        lambda n, by, r: Stage("best_of_n", {"n": n, "by": by, "max_retries": r}),
        COUNT,
        st.sampled_from(["score", "check"]),
        RETRIES,
    ),
)


def cascades(stages: st.SearchStrategy[Stage]) -> st.SearchStrategy[CascadeParams]:
    return st.builds(
        CascadeParams,
        stages=st.lists(stages, min_size=2, max_size=3).map(tuple),
        min_support=st.sampled_from([0.0, 0.6, 1.0]),
        min_score=st.sampled_from([0.0, 0.6]),
        check=st.booleans(),
    )


def refines(stages: st.SearchStrategy[Stage]) -> st.SearchStrategy[RefineParams]:
    return st.builds(
        RefineParams,
        first=stages,
        revise=stages,
        rounds=st.integers(1, 3),
        accept=st.sampled_from(["last", "scored"]),
        check=st.booleans(),
        max_retries=RETRIES,
    )


def as_stage(params: Any) -> Stage:
    return Stage(NAMES[type(params)], {name: getattr(params, name) for name in params.__dataclass_fields__})


TWO_DEEP: st.SearchStrategy[Any] = cascades(LEAVES) | refines(LEAVES)
NESTED = TWO_DEEP.map(as_stage)
PARAMS: st.SearchStrategy[Any] = TWO_DEEP | cascades(LEAVES | NESTED) | refines(LEAVES | NESTED)
ENDINGS = st.sampled_from(
    [
        "\\boxed{7}",
        "\\boxed{8}",
        "\\boxed{1/2}",
        "\\boxed{}",
        "",
        "<think>",
        "</think>\nAnswer: 9",
        "prose " * 9,
    ]
)
SCRIPTS = st.lists(
    st.builds(
        lambda length, ending, score, fails, score_fails, verdict: Script(
            (*["word "] * length, ending), score, fails, score_fails, verdict
        ),
        st.integers(0, 40) | st.integers(85, 120),
        ENDINGS,
        st.sampled_from([0.0, 0.5, 0.9]),
        st.none() | st.none() | st.integers(0, 30),
        st.booleans(),
        st.sampled_from(["right", "wrong", "wrong", "unsure", "error"]),
    ),
    min_size=1,
    max_size=12,
)
SEEDS = st.integers(0, 2**32)
RELEASES = st.sampled_from([0.0, 0.0, 0.2, 1.0])
TIGHT = st.integers(0, 900) | st.just(100_000)


def header(params: Any, whole: bool = False, context: int = 1000) -> Header:
    limits = SampleLimits(100, len(PROMPT) + context, ThinkingMarkers(), whole)
    return Header(NAMES[type(params)], params, limits, COSTS, 7, PROMPT, THINK_PHRASES)


def world_of(
    scripts: Sequence[Script], seed: int, tokens: int, kv: int, releases: float, squeeze: bool
) -> World:
    return World(
        scripts,
        costs=COSTS,
        tokens=tokens,
        kv_tokens=kv + len(PROMPT),
        rng=random.Random(seed),
        squeeze=squeeze,
        late=True,
        releases=releases,
    )


def hold(search: Search, world: World) -> None:
    """What holds of every search wherever it was stopped."""
    branches = search.branches()
    assert sum(b.tokens for b in branches) == search.tree.generated_tokens
    own = [n.id for n in search.tree if n.parent is not None and n.token_ids and not n.given]
    listed = [n for b in branches for n in b.nodes]
    assert len(set(listed)) == len(listed)
    taken_back = {n.id for n in search.tree if n.parent in listed and not n.live}
    assert set(own) <= set(listed) | taken_back
    best = search.best()
    if best is not None:
        assert best.begin in search.tree.path(best.node)
        text = search.tree.path_text(best.node, best.begin)
        if best.complete and text.strip():
            assert [b.fate for b in branches].count("chosen") == 1
            (chosen,) = [b for b in branches if b.fate == "chosen"]
            assert chosen.nodes[-1] == best.node
    if any(b.answer is not None for b in branches):
        assert best is not None
        assert best.answer is not None
    if search.finished:
        assert search.tree.live_tokens in (0, len(PROMPT))
        assert all(b.fate != "running" for b in branches)
    for branch in branches:
        if branch.fate not in ("chosen", "running"):
            assert branch.reason


@PROFILE
@given(
    PARAMS, SCRIPTS, SEEDS, TIGHT, TIGHT, st.booleans(), st.booleans(), RELEASES, st.sampled_from([150, 1000])
)
def test_a_composite_keeps_within_any_room_and_ends(
    params: Any,
    scripts: Sequence[Script],
    seed: int,
    tokens: int,
    kv: int,
    squeeze: bool,
    whole: bool,
    releases: float,
    context: int,
) -> None:
    search = build(header(params, whole, context))
    world = world_of(scripts, seed, tokens, kv, releases, squeeze)
    world.run(search)
    hold(search, world)
    head = header(params, whole, context)
    technique = TECHNIQUES[head.technique]
    assert world.charged <= technique.most_tokens(params, head.limits, COSTS, len(PROMPT), THINK_PHRASES)
    if tokens == kv == 100_000:
        assert search.finished


@PROFILE
@given(PARAMS, SCRIPTS, SEEDS, st.integers(0, 150))
def test_a_composite_that_is_cut_off_anywhere_has_its_best_and_its_branches(
    params: Any, scripts: Sequence[Script], seed: int, cut: int
) -> None:
    search = build(header(params))
    world = world_of(scripts, seed, 100_000, 100_000, 0.0, False)
    world.run(search, until=lambda: len(world.events) >= cut)
    hold(search, world)


@PROFILE
@given(PARAMS, SCRIPTS, SEEDS, TIGHT, TIGHT, st.booleans(), RELEASES)
def test_a_log_of_a_composite_round_trips_and_replays(
    params: Any, scripts: Sequence[Script], seed: int, tokens: int, kv: int, whole: bool, releases: float
) -> None:
    recorder = record(header(params, whole), 100_000)
    world_of(scripts, seed, tokens, kv, releases, True).run(recorder)
    lines = recorder.log.to_lines()
    log = EventLog.from_lines(lines)
    assert log == recorder.log
    assert log.to_lines() == lines
    again = replay(log)
    assert again.tree.live_tokens == recorder.tree.live_tokens
    assert again.best() == recorder.best()
    assert again.branches() == recorder.branches()


@PROFILE
@given(
    PARAMS,
    SEEDS,
    st.booleans(),
    st.integers(1, 120),
    st.integers(0, 3),
    st.booleans(),
    RELEASES,
    st.integers(0, 400),
)
def test_a_composite_of_models_that_think_closes_thinking_and_answers(
    params: Any,
    seed: int,
    opens: bool,
    thoughts: int,
    loses: int,
    whole: bool,
    releases: float,
    kv: int,
) -> None:
    limits = SampleLimits(100, len(PROMPT) + 1000, MARKERS, whole)
    search = build(Header(NAMES[type(params)], params, limits, COSTS, 7, PROMPT, THINK_PHRASES))
    world = ThinkWorld(
        [Script((), 0.5, verdict="unsure")],
        opens=opens,
        thoughts=thoughts,
        loses=loses,
        costs=COSTS,
        kv_tokens=len(PROMPT) + 110 + kv,
        rng=random.Random(seed),
        squeeze=True,
        late=True,
        releases=releases,
    )
    world.run(search)
    if not any(isinstance(e, Failed) for e in world.events) and search.finished:
        best = search.best()
        assert best is not None
        assert best.answer == "7"


@PROFILE
@given(SEEDS, st.integers(1, 3), st.integers(1, 3), TIGHT, st.booleans(), RELEASES, st.integers(0, 3))
def test_a_composite_with_trees_of_steps_keeps_within_any_room(
    seed: int, width: int, expand: int, kv: int, squeeze: bool, releases: float, failures: int
) -> None:
    beam = Stage("beam", {"width": width, "expand": expand})
    params = CascadeParams((Stage("self_consistency", {"n": 3}), beam, beam), min_support=1.0)
    search = build(Header("cascade", params, STEP_LIMITS, COSTS, 7, PROMPT))
    rng = random.Random(seed)
    world = StepWorld(
        [],
        costs=COSTS,
        kv_tokens=len(PROMPT) + kv,
        rng=rng,
        squeeze=squeeze,
        late=True,
        releases=releases,
        fails=lambda call, failed: isinstance(call, Generate) and failed < failures and rng.random() < 0.3,
    )
    world.run(search)
    assert sum(b.tokens for b in search.branches()) == search.tree.generated_tokens
    if search.finished:
        assert search.tree.live_tokens in (0, len(PROMPT))
        assert all(b.fate != "running" for b in search.branches())
