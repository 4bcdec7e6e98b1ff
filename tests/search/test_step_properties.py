"""Any technique over steps in any world: the contract's promises, whatever comes back in whatever order.

`PONDERA_EXAMPLES=10000` makes a long run of it; `run` can be called with any `Case` of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.beam import BeamParams
from search.contract import Branch, Call, Chunk, Search
from search.dvts import DvtsParams
from search.log import EventLog, build, record, replay
from search.mcts import MctsParams
from search.particle import ParticleParams
from search.rebase import RebaseParams
from tests.search.drive import PROMPT
from tests.search.profile import EXAMPLES
from tests.search.tree_case import AMPLE, CONTEXT, NAMES, Case, TreeWorld

# Each example is a whole search, so there are fewer of them than of most properties.
PROFILE = settings(
    derandomize=True,
    deadline=None,
    max_examples=max(1, EXAMPLES // 4),
    suppress_health_check=[HealthCheck.too_slow],
)
FEW = st.integers(1, 5)
RETRIES = st.integers(0, 3)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "max_depth": st.sampled_from([1, 2, 4, 64]),
    "reduction": st.sampled_from(["last", "min", "product", "mean"]),
    "aggregate": st.sampled_from(["weighted", "max"]),
    "max_retries": RETRIES,
}
BY_SCORE: st.SearchStrategy[Any] = st.one_of(
    st.builds(BeamParams, width=FEW, expand=FEW, **SHARED),
    st.builds(DvtsParams, subtrees=FEW, expand=FEW, **SHARED),
    st.builds(RebaseParams, n=st.integers(1, 20), temperature=st.sampled_from([0.01, 0.2, 5.0]), **SHARED),
    st.builds(
        MctsParams,
        expansions=st.integers(1, 50),
        answers=FEW,
        width=FEW,
        c_puct=st.sampled_from([0.0, 0.5, 3.0]),
        widen_k=st.sampled_from([1.0, 2.5]),
        widen_alpha=st.sampled_from([0.0, 0.5, 1.0]),
        virtual_loss=st.sampled_from([0.0, 1.0]),
        **SHARED,
    ),
    st.builds(
        ParticleParams,
        particles=st.integers(1, 20),
        temperature=st.sampled_from([0.01, 1.0]),
        ess_threshold=st.sampled_from([0.0, 0.5, 1.0]),
        **SHARED,
    ),
)


def by_likelihood(params: Any) -> Any:
    return replace(params, likelihood=0.5) if params.aggregate == "weighted" else params


PARAMS = BY_SCORE | BY_SCORE.map(by_likelihood)
TIGHT = st.integers(0, 400) | st.just(AMPLE)
CASES = st.builds(
    Case,
    PARAMS,
    seed=st.integers(0, 2**32),
    depth=st.integers(1, 4),
    choices=st.integers(1, 3),
    length=st.integers(1, 6) | st.just(18),
    endless=st.sampled_from([False, False, False, True]),
    failing=st.sampled_from([0, 0, 2, 8, 16]),
    tokens=TIGHT,
    kv_tokens=TIGHT | st.just(CONTEXT),
    slots=st.integers(1, 20),
    score_tokens=st.sampled_from([0, 1, 7]),
    squeeze=st.booleans(),
    releases=st.sampled_from([0.0, 0.0, 0.2, 1.0]),
    limit=st.sampled_from([1, 12, 90, 400]),
    step_tokens=st.sampled_from([1, 4, 20]),
    whole=st.sampled_from([False, False, False, True]),
    equate=st.booleans(),
    begins=st.sampled_from(["", "", "<think>", "<think>\\boxed{3}</think>", "```"]),
)


def run(case: Case) -> None:
    """Run a case to its end. The world holds the search to the contract at every step; here the rest is."""
    search, world = build(case.header), case.world
    world.run(search)
    check(case, search, world)


def check(case: Case, search: Search, world: TreeWorld) -> None:
    branches = search.branches()
    assert sum(b.tokens for b in branches) == search.tree.generated_tokens
    if case.tokens == AMPLE and case.kv_tokens >= min(case.limit, CONTEXT):
        assert search.finished
    if search.finished:
        assert search.tree.live_tokens in (0, len(PROMPT))
        assert all(b.fate != "running" for b in branches)
    for branch in branches:
        if branch.fate in ("failed", "truncated", "stopped", "outvoted", "outscored", "no_answer", "pruned"):
            assert branch.reason
    check_answers(search, world, branches)
    best = search.best()
    assert (best is None) == (search.tree.generated_tokens == 0)
    if best is not None and best.complete and search.tree.path_text(best.node).strip():
        assert [b.nodes[-1] for b in branches if b.fate == "chosen"][-1] == best.node


def check_answers(search: Search, world: TreeWorld, branches: Sequence[Branch]) -> None:
    """Whatever was completed stands, but for what a twin says as well."""
    completed = {b.nodes[-1]: b for b in branches if b.nodes[-1] in (world.answers or set())}
    assert set(completed) == (world.answers or set())
    fates = {b.fate for b in completed.values() if b.reason != "a sibling has the same tokens"}
    assert fates <= {"chosen", "agreed", "outvoted", "outscored", "no_answer"}
    best = search.best()
    if any(b.answer is not None for b in completed.values()):
        assert best is not None
        assert best.answer is not None
    elif completed:
        assert best is not None
        assert best.answer is None


@PROFILE
@given(CASES)
def test_a_search_over_steps_keeps_within_any_room_ends_and_loses_nothing(case: Case) -> None:
    run(case)


@PROFILE
@given(CASES, st.integers(0, 150))
def test_a_search_over_steps_that_is_cut_off_anywhere_has_what_was_finished(case: Case, cut: int) -> None:
    search, world = build(case.header), case.world
    world.run(search, until=lambda: len(world.events) >= cut)
    check_answers(search, world, search.branches())
    assert sum(b.tokens for b in search.branches()) == search.tree.generated_tokens


@PROFILE
@given(CASES)
def test_a_log_of_steps_round_trips_and_replays_byte_for_byte(case: Case) -> None:
    recorder = record(case.header, 100_000)
    case.world.run(recorder)
    lines = recorder.log.to_lines()
    log = EventLog.from_lines(lines)
    assert log.to_lines() == lines
    again = replay(log)
    assert again.tree.live_tokens == recorder.tree.live_tokens
    assert again.best() == recorder.best()
    assert again.branches() == recorder.branches()
    assert again.stop_reason == recorder.stop_reason


@PROFILE
@given(CASES)
def test_no_more_is_drawn_than_the_parameters_say(case: Case) -> None:
    search, world = build(case.header), case.world
    world.run(search)
    params, retries = case.params, case.params.max_retries
    steps = len(search.branches())
    if isinstance(params, MctsParams):
        assert steps <= params.expansions + retries
        return
    width = {
        "beam": lambda: params.width * params.expand,
        "dvts": lambda: params.subtrees * params.expand,
        "rebase": lambda: params.n,
        "particle": lambda: params.particles,
    }[NAMES[type(params)]]()
    assert steps <= width * params.max_depth + retries


def test_the_world_is_no_easy_one() -> None:
    """Guards the tests above: their cases do reach what they are about."""
    failed: list[Call] = []
    chunks: list[Chunk] = []
    case = Case(
        BeamParams(2, 2), 1, 3, 2, 3, False, 4, AMPLE, AMPLE, 4, 1, True, 0.2, 90, 20, False, True, "<think>"
    )
    world = case.world
    world.run(build(case.header))
    chunks += [e for e in world.events if isinstance(e, Chunk)]
    failed += [c for c in world.asked if case.world.fails(c, 0)]
    assert chunks
    assert failed
