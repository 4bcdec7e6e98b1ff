from __future__ import annotations

import dataclasses
import random
from typing import Literal

import pytest

from search.best_of_n import BestOfN, BestOfNParams
from search.contract import Chunk, Costs, Failed, Generate, Generated, Room, Score
from search.ground import Ground
from search.rollout import Plan, Rollout
from search.sample import SampleLimits, State
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from search.slices import MIN_SLICE
from tests.search.drive import LIMITS, PROMPT, Script, World, says

AMPLE = Room(slots=64, tokens=100_000, kv_tokens=100_000)


def rollout(
    n: int = 4,
    width: int = 4,
    limits: SampleLimits = LIMITS,
    max_retries: int = 2,
    score_tokens: int | None = None,
    score_batch: int = 1,
) -> Rollout:
    ground = Ground.of(PROMPT, limits, Costs(score_tokens=score_tokens or 0), 7)
    verify: Literal["none", "score"] = "none" if score_tokens is None else "score"
    return Rollout(ground, Plan(n, width, max_retries, verify, score_batch))


def generates(calls: object) -> list[Generate]:
    assert isinstance(calls, list)
    return [c for c in calls if isinstance(c, Generate)]


def voting(n: int, width: int | None = None, limits: SampleLimits = LIMITS) -> SelfConsistency:
    params = SelfConsistencyParams(n=n, width=width or n, stop="none")
    return SelfConsistency(params, Ground.of(PROMPT, limits, Costs(), 7))


def test_only_the_first_sample_is_asked_for_until_its_first_token_has_come() -> None:
    r = rollout()
    (first,) = generates(r.ask(AMPLE))
    assert r.ask(AMPLE) == []
    r.tell(Chunk(first.id, (), ""))
    assert r.ask(AMPLE) == []
    r.tell(Chunk(first.id, (9,), "x"))
    assert len(r.ask(AMPLE)) == 3


@pytest.mark.parametrize("event", [Generated(1, "stop"), Failed(1, "lost")])
def test_the_end_or_failure_of_the_first_sample_lets_the_others_start(event: Generated | Failed) -> None:
    r = rollout()
    r.ask(AMPLE)
    r.tell(event)
    assert len(r.ask(AMPLE)) >= 3


def test_with_ample_room_a_sample_is_one_call_of_its_full_length() -> None:
    r = rollout(n=1)
    (call,) = generates(r.ask(AMPLE))
    assert call.max_new_tokens == LIMITS.max_new_tokens


def test_every_sample_and_continuation_has_its_own_seed() -> None:
    world = World([says("1", 90)], tokens=500)
    search = voting(8)
    world.run(search)
    seeds = [c.seed for c in world.asked if isinstance(c, Generate)]
    assert len(seeds) > len(search.branches())
    assert len(set(seeds)) == len(seeds)


def test_short_room_is_divided_and_cut_samples_are_continued_from_their_node() -> None:
    r = rollout(n=2, width=2)
    (first,) = generates(r.ask(Room(8, 128, 1000)))
    assert first.max_new_tokens == 96
    r.tell(Chunk(first.id, (9,) * 96, "x" * 96))
    (second,) = generates(r.ask(Room(8, 32, 1000)))
    assert second.max_new_tokens == 32
    assert r.tell(Generated(first.id, "length")) == []
    (more,) = generates(r.ask(Room(8, 60, 1000)))
    assert more.parent == first.node
    assert more.max_new_tokens == 4
    assert r.samples[0].nodes == [first.node, more.node]


def test_a_sample_that_reaches_its_own_limit_is_truncated_and_reported() -> None:
    search = voting(1)
    World([says("1", 500)]).run(search)
    (branch,) = search.branches()
    assert (branch.fate, branch.reason) == ("truncated", "max_new_tokens reached")
    assert branch.tokens == 100
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (False, None)
    assert search.stop_reason == "all_truncated"


def test_case_29_a_sample_that_fills_the_context_is_closed_and_reported_not_dropped() -> None:
    limits = dataclasses.replace(LIMITS, context_tokens=len(PROMPT) + 20)
    search = voting(2, limits=limits)
    world = World([says("1", 50), says("2", 10)])
    world.run(search)
    assert max(c.max_new_tokens for c in world.asked if isinstance(c, Generate)) == 20
    fates = [(b.fate, b.reason) for b in search.branches()]
    assert fates[0] == ("truncated", "context full")
    assert fates[1][0] == "chosen"


def test_case_29_an_engine_that_says_the_context_is_full_closes_the_sample() -> None:
    r = rollout(n=1)
    (call,) = r.ask(AMPLE)
    (sample,) = r.tell(Generated(call.id, "context"))
    assert (sample.state, sample.reason) == (State.TRUNCATED, "context full")


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="no room in a context"):
        rollout(limits=SampleLimits(10, len(PROMPT)))


def test_case_38_one_failed_sample_of_eight_leaves_the_others_to_vote_and_is_reported() -> None:
    params = SelfConsistencyParams(n=8, width=8, stop="none", max_retries=0)
    search = SelfConsistency(params, Ground.of(PROMPT, LIMITS, Costs(), 7))
    scripts = [says(str(i % 2)) for i in range(8)]
    scripts[3] = Script(("a ", "b "), fails_after=2)
    World(scripts).run(search)
    fates = [b.fate for b in search.branches()]
    assert fates.count("failed") == 1
    assert search.branches()[3].reason == "engine lost"
    assert search.branches()[3].tokens == 2
    best = search.best()
    assert best is not None
    assert best.answer == "0"


def test_a_failed_sample_is_replaced_up_to_the_retries() -> None:
    broken = Script(("a ",), fails_after=1)
    search = voting(3)
    World([broken, says("1"), says("1"), says("1")]).run(search)
    assert [b.fate for b in search.branches()].count("failed") == 1
    assert len(search.branches()) >= 3
    search = voting(3)
    World([broken]).run(search)
    assert [b.fate for b in search.branches()] == ["failed"] * 5
    assert search.stop_reason == "all_failed"


def test_a_budget_too_small_for_all_still_completes_some() -> None:
    search = voting(8)
    World([says("1", 60)], tokens=200).run(search)
    assert [b.answer for b in search.branches()].count("1") >= 2


def test_late_chunks_of_a_cancelled_call_are_not_added() -> None:
    r = rollout(n=1)
    (call,) = r.ask(AMPLE)
    assert r.stop("decided") == [call.id]
    r.tell(Chunk(call.id, (9,), "late"))
    assert r.tell(Generated(call.id, "stop")) == []
    assert r.tree.generated_tokens == 0
    assert r.samples[0].state is State.STOPPED


def test_events_of_unknown_calls_are_ignored() -> None:
    r = rollout()
    r.ask(AMPLE)
    for event in (Chunk(99, (1,), "x"), Generated(99, "stop"), Failed(99, "x")):
        assert r.tell(event) == []
    assert r.tree.generated_tokens == 0


def test_a_slice_that_ends_by_length_without_a_token_is_a_failure_and_not_a_loop() -> None:
    r = rollout(n=2, width=2)
    (call,) = r.ask(Room(8, 70, 1000))
    (sample,) = r.tell(Generated(call.id, "length"))
    assert sample.state is State.FAILED


def test_room_smaller_than_a_slice_still_goes_to_a_lone_sample() -> None:
    search = voting(1)
    World([says("1", 50)], tokens=10).run(search)
    assert search.tree.generated_tokens == 10
    assert search.best() is not None
    assert not search.finished


def test_nothing_is_generated_that_could_not_be_scored() -> None:
    search = BestOfN(BestOfNParams(n=4, width=4), Ground.of(PROMPT, LIMITS, Costs(score_tokens=40), 7))
    world = World([says("1", 20)], costs=Costs(score_tokens=40), tokens=200)
    world.run(search)
    complete = [b for b in search.branches() if b.answer is not None]
    assert complete
    assert all(b.score is not None for b in complete)
    search = BestOfN(BestOfNParams(n=4, width=4), Ground.of(PROMPT, LIMITS, Costs(score_tokens=40), 7))
    assert search.ask(Room(8, 40, 1000)) == []


def test_a_new_sample_leaves_room_to_score_the_running_ones_and_itself() -> None:
    r = rollout(score_tokens=40)
    (call,) = r.ask(AMPLE)
    r.tell(Chunk(call.id, (9,), "x"))
    assert r.ask(Room(8, 40 + 40 + MIN_SLICE - 1, 1000)) == []
    (second,) = generates(r.ask(Room(8, 40 + 40 + MIN_SLICE, 1000)))
    assert second.max_new_tokens == MIN_SLICE


def test_scores_come_before_new_samples() -> None:
    r = rollout(n=2, width=1, score_tokens=10)
    (call,) = r.ask(AMPLE)
    r.tell(Chunk(call.id, (9,), "\\boxed{1}"))
    r.tell(Generated(call.id, "stop"))
    assert [type(c) for c in r.ask(Room(1, 1000, 1000))] == [Score]


@pytest.mark.parametrize("kv", [40, 60, 90, 130])
def test_samples_that_wait_for_each_others_kv_do_not_end_the_search(kv: int) -> None:
    search = voting(4)
    world = World([says(str(i), 35) for i in range(4)], kv_tokens=len(PROMPT) + kv, rng=random.Random(kv))
    world.run(search)
    assert search.finished
    assert [b.fate for b in search.branches()].count("chosen") == 1
    assert all(b.answer is not None or b.fate == "stopped" for b in search.branches())


def test_the_youngest_waiting_sample_gives_its_kv_to_the_oldest_and_takes_it_up_again_later() -> None:
    r = rollout(n=2, width=2, limits=SampleLimits(400, 1000))
    (first,) = generates(r.ask(Room(8, 10_000, 200)))
    r.tell(Chunk(first.id, (9,) * 150, "x"))
    (second,) = generates(r.ask(Room(8, 10_000, 50)))
    r.tell(Chunk(second.id, (9,) * 50, "x"))
    r.tell(Generated(first.id, "length"))
    r.tell(Generated(second.id, "length"))
    live = r.tree.live_tokens
    (more,) = generates(r.ask(Room(8, 10_000, 0)))
    assert (more.parent, more.max_new_tokens) == (first.node, 50)
    assert r.tree.live_tokens == live - 50
    r.tell(Chunk(more.id, (9,), "x"))
    r.tell(Generated(more.id, "stop"))
    (again,) = generates(r.ask(Room(8, 10_000, 90)))
    assert (again.parent, again.max_new_tokens) == (second.node, 40)
    assert r.tree.live_tokens == len(PROMPT) + 50


def test_ended_samples_give_their_kv_back() -> None:
    search = voting(4)
    World([says("1"), says("2")]).run(search)
    assert search.tree.live_tokens == len(PROMPT)


def test_width_bounds_the_samples_under_way_waiting_ones_included() -> None:
    r = rollout(n=8, width=2)
    (first,) = r.ask(Room(8, 64, 1000))
    assert isinstance(first, Generate)
    r.tell(Chunk(first.id, (9,) * first.max_new_tokens, "x"))
    assert len(r.ask(Room(8, 64, 1000))) == 1
    r.tell(Generated(first.id, "length"))
    calls = generates(r.ask(Room(8, 1000, 1000)))
    assert [c.parent for c in calls] == [first.node]
    assert calls[0].max_new_tokens >= MIN_SLICE


WHOLE = dataclasses.replace(LIMITS, whole=True)


def test_whole_samples_start_as_many_as_fit_and_the_others_wait_for_room() -> None:
    r = rollout(n=3, width=3, limits=WHOLE, score_tokens=10)
    assert r.ask(Room(8, 109, 1000)) == []
    (first,) = generates(r.ask(Room(8, 110, 100)))
    assert first.max_new_tokens == 100
    r.tell(Chunk(first.id, (9,), "x"))
    assert r.ask(Room(8, 119, 1000)) == []
    assert r.ask(Room(8, 1000, 99)) == []
    assert r.ask(Room(0, 1000, 1000)) == []
    (second,) = generates(r.ask(Room(8, 10 + 219, 1000)))
    assert second.max_new_tokens == 100


def test_a_whole_sample_that_ends_by_length_is_not_continued() -> None:
    r = rollout(n=1, limits=WHOLE)
    (call,) = generates(r.ask(AMPLE))
    r.tell(Chunk(call.id, (9,) * 40, "x"))
    (sample,) = r.tell(Generated(call.id, "length"))
    assert sample.state is State.TRUNCATED
    assert r.ask(AMPLE) == []


def test_after_a_release_the_next_ask_counts_the_prompt_and_the_path_that_it_wakes() -> None:
    r = rollout(n=1, limits=SampleLimits(400, 1000))
    (call,) = generates(r.ask(Room(8, 64, 1000)))
    r.tell(Chunk(call.id, (9,) * 64, "x"))
    r.tell(Generated(call.id, "length"))
    r.release()
    r.release()
    assert r.tree.live_tokens == 0
    asleep = len(PROMPT) + 64
    assert r.ask(Room(8, 1000, asleep)) == []
    (more,) = generates(r.ask(Room(8, 1000, asleep + 50)))
    assert (more.parent, more.max_new_tokens) == (call.node, 50)
    assert r.tree.live_tokens == asleep


def test_a_prompt_that_was_released_is_counted_once_and_prefilled_by_one_sample_first() -> None:
    r = rollout(n=2, width=2)
    r.release()
    assert r.ask(Room(8, 1000, len(PROMPT))) == []
    (first,) = generates(r.ask(Room(8, 1000, len(PROMPT) + 200)))
    assert r.ask(Room(8, 1000, 1000)) == []
    r.tell(Chunk(first.id, (9,), "x"))
    (second,) = generates(r.ask(Room(8, 1000, 100)))
    assert (first.max_new_tokens, second.max_new_tokens) == (100, 100)


def test_a_score_wakes_its_released_path_or_waits_for_the_room_to_do_so() -> None:
    r = rollout(n=1, score_tokens=10)
    (call,) = generates(r.ask(AMPLE))
    r.tell(Chunk(call.id, (9,) * 30, "\\boxed{1}"))
    r.tell(Generated(call.id, "stop"))
    r.release()
    assert r.ask(Room(8, 1000, len(PROMPT) + 29)) == []
    (score,) = r.ask(Room(8, 1000, len(PROMPT) + 30))
    assert isinstance(score, Score)
    assert r.tree.live_tokens == len(PROMPT) + 30
    with pytest.raises(RuntimeError, match="in flight"):
        r.release()


@pytest.mark.parametrize("kv", [7, 8])
def test_a_waiting_sample_gives_its_kv_to_a_score_if_that_is_enough(kv: int) -> None:
    r = rollout(n=2, width=2, limits=SampleLimits(400, 1000), score_tokens=10, score_batch=8)
    (first,) = generates(r.ask(Room(8, 500, 1000)))
    r.tell(Chunk(first.id, (9,) * 80, "\\boxed{1}"))
    (second,) = generates(r.ask(Room(8, 60, 1000)))
    r.tell(Chunk(second.id, (9,) * 40, "x"))
    r.tell(Generated(first.id, "stop"))
    r.tell(Generated(second.id, "length"))
    r.release()
    (more,) = generates(r.ask(Room(8, 1000, len(PROMPT) + 40 + 32)))
    r.tell(Chunk(more.id, (9,) * 32, "x"))
    r.tell(Generated(more.id, "length"))
    (call,) = r.ask(Room(8, 1000, kv))
    if kv < 80 - 72:
        assert isinstance(call, Generate)
        assert (call.parent, call.max_new_tokens) == (more.node, kv)
    else:
        assert call == Score(call.id, first.node)
        assert r.tree.live_tokens == len(PROMPT) + 80
