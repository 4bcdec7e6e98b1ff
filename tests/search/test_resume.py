"""A search that is killed halfway goes on from its log as if nothing had been."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import pytest

from search.beam import BeamParams
from search.best_of_n import BestOfNParams
from search.cascade import CascadeParams
from search.contract import Call, Chunk, Costs, Event, Generate, Generated, Room, Search
from search.log import EventLog, Header, record, replay
from search.nesting import Stage
from search.refine import RefineParams
from search.registry import TECHNIQUES
from search.resume import Pending, in_flight
from search.self_consistency import SelfConsistencyParams
from tests.search.drive import LIMITS, PHRASES, PROMPT, World, says
from tests.search.steps_world import STEP_LIMITS, StepWorld

COSTS = Costs(score_tokens=2, check_tokens=3)
VOTE = SelfConsistencyParams(n=9, width=3)
REFINE = RefineParams(first=Stage("self_consistency", {"n": 3}), rounds=3)
CASCADE = CascadeParams(
    (Stage("self_consistency", {"n": 3}), Stage("refine", {"rounds": 2})), min_support=1.0
)
BEAM = BeamParams(width=2, expand=3)


@dataclass
class SeededWorld(World):
    """What a call writes depends on its seed and on the place in its sample, on nothing else."""

    def event_of(self, search: Search, call: Call) -> Event:
        if not isinstance(call, Generate):
            return super().event_of(search, call)
        at = self.written_tokens(search, call.node)
        if at >= 12:
            return Generated(call.id, "stop")
        if self.left[call.id] == 0:
            return Generated(call.id, "length")
        drawn = hashlib.blake2b(f"{call.seed}/{at}".encode(), digest_size=2).digest()[0]
        text = f"\\boxed{{{drawn % 4}}}" if at == 11 else f"word{drawn} "
        return Chunk(call.id, (100 + drawn,), text)


def world_of(params: Any, seed: int) -> World:
    kind: type[World] = StepWorld if isinstance(params, BeamParams) else SeededWorld
    # In a room so tight, paths take several calls.
    return kind([says("1")], costs=COSTS, kv_tokens=len(PROMPT) + 90, rng=random.Random(seed))


def header(params: Any) -> Header:
    name = next(t.name for t in TECHNIQUES.values() if isinstance(params, t.params_type))
    limits = STEP_LIMITS if isinstance(params, BeamParams) else LIMITS
    return Header(name, params, limits, COSTS, 7, PROMPT, PHRASES)


def resumed(lines: list[str], killed: World, params: Any) -> tuple[Search, World]:
    """The search of a log and a world that takes up where the killed one was, by the log alone."""
    log = EventLog.from_lines(lines)
    search = replay(log)
    world = world_of(params, 0)
    world.rng.setstate(killed.rng.getstate())
    world.charged, world.tokens = killed.charged, killed.tokens
    for pending in in_flight(log):
        rest = pending.rest
        world.in_flight[rest.id] = rest
        if isinstance(rest, Generate):
            world.left[rest.id] = rest.max_new_tokens
    world.asked = list(killed.asked)
    world.seen = set(killed.seen)
    return search, world


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("params", [VOTE, BEAM, REFINE, CASCADE], ids=["vote", "beam", "refine", "cascade"])
def test_a_search_killed_anywhere_ends_with_the_same_answer_as_undisturbed(params: Any, seed: int) -> None:
    whole = record(header(params), 100_000)
    undisturbed = world_of(params, seed)
    undisturbed.run(whole)
    assert whole.finished
    assert whole.best() is not None
    cut = random.Random(seed).randrange(1, len(undisturbed.events))
    recorder = record(header(params), 100_000)
    killed = world_of(params, seed)
    killed.run(recorder, until=lambda: len(killed.events) >= cut)
    search, world = resumed(recorder.log.to_lines(), killed, params)
    assert world.in_flight.keys() == killed.in_flight.keys()
    assert world.left == killed.left
    world.run(search)
    assert search.best() == whole.best()
    assert search.branches() == whole.branches()
    assert search.stop_reason == whole.stop_reason
    assert world.charged == undisturbed.charged


def test_what_came_of_a_call_is_taken_off_and_what_it_was_given_is_not_paid_again() -> None:
    recorder = record(header(BestOfNParams(n=2, width=2)), 100)
    (first,) = recorder.ask(Room(4, 1000, 1000))
    recorder.tell(Chunk(first.id, (5, 6, 7), "\\boxed{1}"))
    (second,) = recorder.ask(Room(1, 1000, 1000))
    assert isinstance(first, Generate)
    assert isinstance(second, Generate)
    pending = in_flight(recorder.log)
    assert pending == (Pending(first, 3), Pending(second, 0))
    rest = pending[0].rest
    assert isinstance(rest, Generate)
    assert (rest.parent, rest.node, rest.max_new_tokens, rest.given_tokens) == (
        first.node,
        first.node,
        first.max_new_tokens - 3,
        0,
    )
    recorder.tell(Generated(first.id, "stop"))
    recorder.tell(Generated(second.id, "stop"))
    (score,) = recorder.ask(Room(4, 1000, 1000))
    (waiting,) = in_flight(recorder.log)
    assert waiting.rest == score


def test_cancelled_calls_are_not_waited_for() -> None:
    params = SelfConsistencyParams(n=9, width=9)
    recorder = record(header(params), 100_000)
    world = World([says("1"), says("1"), says("1"), says("1"), says("1", 60)], costs=COSTS)
    world.run(recorder)
    assert world.cancelled
    assert in_flight(recorder.log) == ()


def test_the_end_of_a_truncated_log_is_not_known() -> None:
    recorder = record(header(VOTE), 3)
    world_of(VOTE, 1).run(recorder)
    with pytest.raises(ValueError, match="truncated"):
        in_flight(recorder.log)
