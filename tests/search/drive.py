"""A scripted random world that runs any search and holds it to its contract at every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from search.contract import (
    Call,
    CallId,
    Candidate,
    Check,
    Checked,
    Chunk,
    Compare,
    Compared,
    Costs,
    Equate,
    Equated,
    Event,
    Failed,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
    Search,
)
from search.ground import Phrase
from search.sample import SampleLimits
from search.tree import ROOT

PROMPT = (1, 2, 3, 4, 5)
LIMITS = SampleLimits(max_new_tokens=100, context_tokens=1000)
PHRASES = {"critique": Phrase((50, 51, 52)), "revise": Phrase((50, 53, 54, 55))}
"""Turns of a conversation; both begin with the end of the model's own."""


@dataclass(frozen=True)
class Script:
    """What one sample writes if nobody stops it: one token a piece of text, then `stop`."""

    pieces: tuple[str, ...]
    score: float = 0.5
    fails_after: int | None = None
    """Fail once this many tokens have come."""
    score_fails: bool = False
    verdict: Literal["right", "wrong", "unsure", "error"] = "right"


def says(answer: str, length: int = 6, score: float = 0.5) -> Script:
    """A script of `length` tokens whose last one is the answer in a box."""
    return Script((*["step "] * (length - 1), f"\\boxed{{{answer}}}"), score)


@dataclass
class World:
    """Engines, budget and chance.

    Args:
        scripts: the script of each sample in order of starting; the last one repeats.
        tokens: cap of charged tokens over all.
        kv_tokens: cap of live KV tokens, the prompt included.
        slots: calls in flight at most.
        rng: decides event order, chunk sizes and how much of the free room is shown.
        squeeze: show a random part of what is free, not all of it.
        late: cancelled calls still send chunks.
        releases: how likely (0..1) the search's KV is dropped before an ask, when nothing is in flight.
    """

    scripts: Sequence[Script]
    costs: Costs = field(default_factory=Costs)
    tokens: int = 1_000_000
    kv_tokens: int = 1_000_000
    slots: int = 64
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    squeeze: bool = False
    late: bool = False
    releases: float = 0.0
    same: Callable[[str, str], bool | None] = lambda _, __: False
    max_steps: int = 20_000
    charged: int = 0
    steps: int = 0
    in_flight: dict[CallId, Call] = field(default_factory=dict)
    left: dict[CallId, int] = field(default_factory=dict)
    sent: dict[CallId, int] = field(default_factory=dict)
    cancelled: list[CallId] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    asked: list[Call] = field(default_factory=list)
    bests: list[Candidate | None] = field(default_factory=list)
    seen: set[CallId] = field(default_factory=set)

    def run(self, search: Search, until: Callable[[], bool] = lambda: False) -> Search:
        """Run to the end, to the end of the room, or until `until()`; checks the contract at every step."""
        while not until():
            self.steps += 1
            assert self.steps < self.max_steps, "the search does not end"
            self.maybe_release(search)
            calls = self.ask(search)
            if not self.in_flight:
                if not calls and self.squeeze and not search.finished:
                    self.squeeze = False  # what was shown was too little; show all before giving up
                    continue
                break
            self.tell(search, self.next_event(search))
        if search.finished:
            assert not self.in_flight
            assert search.stop_reason
            assert search.gain() == 0
            assert search.ask(self.room(search)) == []
        return search

    def maybe_release(self, search: Search) -> None:
        if self.releases and self.rng.random() < self.releases:
            live = search.tree.live_tokens
            if self.in_flight:
                with pytest.raises(RuntimeError, match="in flight"):
                    search.release()
                assert search.tree.live_tokens == live
            else:
                search.release()
                assert search.tree.live_tokens == 0

    def room(self, search: Search) -> Room:
        worst = sum(self.left.values()) + sum(map(self.worst, self.in_flight.values()))
        tokens = self.tokens - self.charged - worst
        kv = self.kv_tokens - search.tree.live_tokens - sum(self.left.values())
        slots = self.slots - len(self.in_flight)
        if self.squeeze:
            tokens, kv = self.rng.randint(0, max(0, tokens)), self.rng.randint(0, max(0, kv))
            slots = self.rng.randint(0, slots)
        return Room(slots, max(0, tokens), max(0, kv))

    def worst(self, call: Call) -> int:
        """What a call that is no generation may still cost."""
        return 0 if isinstance(call, Generate) else self.costs.of(call)

    def ask(self, search: Search) -> list[Call]:
        room = self.room(search)
        live = search.tree.live_tokens
        calls = search.ask(room)
        assert len(calls) <= room.slots
        new = {c.id: c.max_new_tokens for c in calls if isinstance(c, Generate)}
        assert all(n >= 1 for n in new.values())
        assert sum(map(self.costs.of, calls)) <= room.tokens
        assert search.tree.live_tokens - live + sum(new.values()) <= room.kv_tokens
        for call in calls:
            if isinstance(call, Equate):
                continue
            # Its KV is booked, whatever was released before.
            path = search.tree.path(call.node)
            assert search.tree.live_tokens >= sum(len(search.tree[n].token_ids) for n in path)
        for call in calls:
            assert call.id not in self.seen, "a call's number is used twice"
            self.seen.add(call.id)
            self.in_flight[call.id] = call
            self.charged += call.given_tokens if isinstance(call, Generate) else 0
        assert search.tree.given_tokens == sum(
            c.given_tokens for c in (*self.asked, *calls) if isinstance(c, Generate)
        )
        self.left.update(new)
        self.sent.update(dict.fromkeys(new, 0))
        self.asked.extend(calls)
        return calls

    def next_event(self, search: Search) -> Event:
        """An event of a call in flight, or a late one of a cancelled call."""
        if self.late and self.cancelled and self.rng.random() < 0.3:
            return Chunk(self.rng.choice(self.cancelled), (9,), "late \\boxed{666}")
        call = self.in_flight[self.rng.choice(sorted(self.in_flight))]
        return self.event_of(search, call)

    def event_of(self, search: Search, call: Call) -> Event:
        if isinstance(call, Equate):
            return Equated(call.id, self.same(call.answer, call.other))
        script = self.script(search, call)
        if isinstance(call, Score | Check) and script.score_fails:
            return Failed(call.id, "verifier lost")
        if isinstance(call, Score):
            return Scored(call.id, script.score)
        if isinstance(call, Check):
            return Checked(call.id, script.verdict)
        if isinstance(call, Compare):
            return Compared(call.id, 0.5 + (script.score - self.script(search, other(call)).score) / 2)
        assert isinstance(call, Generate)
        at = self.written_tokens(search, call.node)
        if script.fails_after is not None and at >= script.fails_after:
            return Failed(call.id, "engine lost")
        if at >= len(script.pieces):
            return Generated(call.id, "stop")
        if self.left[call.id] == 0:
            return Generated(call.id, "length")
        end = at + min(self.rng.randint(1, 8), self.left[call.id])
        if script.fails_after is not None:
            end = min(end, script.fails_after)
        pieces = script.pieces[at:end]
        # Equal scripts have equal tokens, and so one score; unequal ones never do.
        first = 100 + 1000 * self.scripts.index(script) + at
        return Chunk(call.id, tuple(range(first, first + len(pieces))), "".join(pieces))

    def script(self, search: Search, call: Call) -> Script:
        assert not isinstance(call, Equate)
        first = self.turn_path(search, call.node)[0]
        order = [n.id for n in search.tree if self.begins_sample(search, n.id)].index(first)
        return self.scripts[min(order, len(self.scripts) - 1)]

    def written_tokens(self, search: Search, node: int) -> int:
        """Tokens of the sample that a node belongs to, up to the node's end."""
        return sum(len(search.tree[n].token_ids) for n in self.turn_path(search, node))

    def turn_path(self, search: Search, node: int) -> list[int]:
        """The path to a node from where its sample begins: after the prompt, or after the last turn."""
        path = search.tree.path(node)
        starts = [i for i, n in enumerate(path) if self.begins_sample(search, n)]
        return path[starts[-1] :]

    def begins_sample(self, search: Search, node: int) -> bool:
        """Whether a node is the first one of a sample."""
        parent = search.tree[node].parent
        return (
            parent is not None and not is_turn(search, node) and (parent == ROOT or is_turn(search, parent))
        )

    def tell(self, search: Search, event: Event) -> list[CallId]:
        before = search.best()
        generated = search.tree.generated_tokens
        cancels = search.tell(event)
        self.events.append(event)
        known = event.call in self.in_flight
        if isinstance(event, Chunk):
            added = len(event.token_ids) if known else 0
            assert search.tree.generated_tokens == generated + added
            self.charged += added
            if known:
                self.left[event.call] -= added
        elif known:
            call = self.in_flight.pop(event.call)
            self.left.pop(event.call, None)
            self.charged += self.worst(call)
        for call_id in cancels:
            cancelled = self.in_flight.pop(call_id)
            self.left.pop(call_id, None)
            self.charged += self.worst(cancelled)
            self.cancelled.append(call_id)
        self.check(search, event, before)
        return cancels

    def check(self, search: Search, event: Event, before: Candidate | None) -> None:
        best = search.best()
        self.bests.append(best)
        assert self.charged <= self.tokens
        assert search.tree.live_tokens + sum(self.left.values()) <= self.kv_tokens
        if search.tree.generated_tokens:
            assert best is not None
        if best is not None:
            assert best.complete or best.answer is None
            assert (best.key is None) == (best.answer is None)
            assert 0 <= best.support <= 1
        if before is not None and before.complete and before.answer is not None:
            assert best is not None and best.complete and best.answer is not None
        if isinstance(event, Failed):
            assert best == before
        assert search.gain() >= 0


def is_turn(search: Search, node: int) -> bool:
    """Whether a node is a turn of the user, written by the search."""
    return search.tree[node].given and not search.tree[node].text


def other(call: Compare) -> Compare:
    """The same comparison from the other side."""
    return replace(call, node=call.other, other=call.node)


def one_by_one(world: World, search: Search, order: Sequence[int]) -> None:
    """Start all there is to start, then let the calls end one after the other in the given order.

    `order` ranks samples; those that are not in flight at their turn are taken when they are.
    """

    def rank(call: Call) -> tuple[int, int]:
        if isinstance(call, Equate):
            return -1, call.id
        first = search.tree.path(call.node)[1]
        sample = [n.id for n in search.tree if n.parent == ROOT].index(first)
        return (order.index(sample) if sample in order else len(order)), call.id

    while True:
        world.ask(search)
        if not world.in_flight:
            return
        call = min(world.in_flight.values(), key=rank)
        while call.id in world.in_flight:
            world.tell(search, world.event_of(search, call))
