"""Drawing whole samples: the machinery shared by all techniques that do nothing else with the engine.

A sample is a chain of nodes. With ample room it is one `Generate` of all its tokens. When tokens or KV are
short the room is divided over the samples that want to run (`search.slices`); one whose slice ended before
its own limit is continued from its node. So token caps are exact without giving up width. Under
`SampleLimits.whole` nothing is sliced: a sample that does not fit waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from search.contract import Call, CallId, Checked, Chunk, Event, Failed, Generated, Room, Scored
from search.ground import Ground
from search.outcome import read_outcome
from search.sample import Sample, State
from search.sample_memory import SampleMemory
from search.sample_room import SampleRoom
from search.sample_scores import SampleScores, Verify
from search.sample_writer import Running, SampleWriter
from search.tree import Tree


@dataclass(frozen=True, slots=True)
class Plan:
    """How many samples to draw.

    Args:
        n: samples wanted.
        width: how many are under way at once (running or waiting for room); a technique may change it as it
            goes (`Rollout.width`).
        max_retries: how many failed ones may be replaced; at most `n + max_retries` are ever started.
        verify: what is asked about each complete sample: nothing, its score, or whether it is right.
        score_batch: complete samples that are scored together. Fewer are scored only when none runs: each
            score interrupts the engine's decoding, and one batch of them does so once.
        logprobs: as in `Generate`.
    """

    n: int
    width: int
    max_retries: int
    verify: Verify = "none"
    score_batch: int = 1
    logprobs: int = 0


class Rollout:
    """Draws samples by ask/tell and scores the complete ones if the plan says so.

    Args:
        ground: what it is built on; its root leaves at least one token of context.
        plan: how many samples.
    """

    def __init__(self, ground: Ground, plan: Plan) -> None:
        self.tree: Tree = ground.tree
        self.failed = 0
        self.width = plan.width
        self._ground = ground
        self._plan = plan
        self._limit = ground.sample_tokens
        self._limit_reason = (
            "max_new_tokens reached"
            if ground.limits.max_new_tokens <= ground.context_left
            else "context full"
        )
        self._memory = SampleMemory(ground)
        self._writer = SampleWriter(ground, plan.logprobs)
        self._scores = SampleScores(ground, self._memory, plan.verify, plan.score_batch)
        self._room = SampleRoom(ground, self._memory, self._scores.tokens)
        self._prefilled = plan.n == 1
        self._ended_tokens = 0
        self._ended = 0

    @property
    def samples(self) -> list[Sample]:
        """All samples, in the order they were started."""
        return self._writer.samples

    @property
    def startable(self) -> int:
        """Samples that may still be started, as things stand now."""
        tries = self._plan.n + min(self.failed, self._plan.max_retries)
        return max(0, tries - len(self.samples))

    @property
    def under_way(self) -> list[int]:
        """Numbers of the samples that run or wait for room, in their order."""
        running = (running.sample.index for running in self._writer.running.values())
        return sorted([*running, *(sample.index for sample in self._writer.waiting)])

    @property
    def remaining(self) -> int:
        """Samples that may still complete: under way or not yet started."""
        return len(self._writer.running) + len(self._writer.waiting) + self.startable

    @property
    def done(self) -> bool:
        """Nothing is in flight and nothing is left to ask."""
        return not self._scores and self.remaining == 0

    @property
    def longest(self) -> Sample | None:
        """The sample with the longest text, of equals the one of most tokens, then the earliest.

        None when there is not one token.
        """
        return self._writer.longest

    @property
    def expected_tokens(self) -> float:
        """Charged tokens that one more sample is expected to take: the mean of those that ended so far,
        or the limit before the first one, and its score."""
        mean = self._ended_tokens / self._ended if self._ended else float(self._limit)
        return max(1.0, mean) + self._scores.tokens

    def ask(self, room: Room) -> list[Call]:
        """Scores first, since they turn samples into answers; then samples under way; then new ones.

        The live tree never grows by more than `room.kv_tokens` in all: a sample that is put to sleep makes
        room for the slice of another in the same call.
        """
        live = self.tree.live_tokens
        writer, scores = self._writer, self._scores
        calls = scores.ask(room, writer.waiting, running=bool(writer.running))
        wanting = self._wanting(room.slots - len(calls))
        if not wanting:
            return calls
        to_score = len(calls) + len(scores.waiting) + len(writer.running)
        pieces = [writer.piece(sample) for sample in wanting]
        slices = self._room.divide(
            pieces,
            room.tokens - scores.tokens * to_score - writer.unpaid,
            room.kv_tokens - (self.tree.live_tokens - live),
            writer.waiting,
            held=writer.held,
            idle=not self._in_flight,
        )
        served = len(slices) if self._prefilled else 1
        for piece, slice_ in list(zip(pieces, slices, strict=False))[:served]:
            calls.append(writer.generate(piece, slice_))
        return calls

    def tell(self, event: Event) -> list[Sample]:
        """Take in an event. Returns the samples that ended or whose score came."""
        if isinstance(event, Chunk):
            self._prefilled |= self._writer.grow(event)
        elif isinstance(event, Generated | Failed) and event.call in self._writer.running:
            running = self._writer.running.pop(event.call)
            self._prefilled = True
            if isinstance(event, Failed):
                self._fail(running.sample, event.reason)
            else:
                self._end_slice(running, event)
            return [] if running.sample.state is State.WAITING else [running.sample]
        elif isinstance(event, Scored | Checked | Failed):
            return self._scores.tell(event)
        return []

    def release(self) -> None:
        """No KV is held any more: all paths, and the prompt, are prefilled again when their turn comes.

        Raises:
            RuntimeError: calls are in flight.
        """
        if self._in_flight:
            raise RuntimeError(f"{len(self._in_flight)} calls are in flight")
        self._memory.release([*self._writer.waiting, *self._scores.waiting])
        self._prefilled = self._plan.n == 1

    def stop(self, reason: str) -> list[CallId]:
        """End all that is under way. Returns the calls in flight, for cancelling."""
        in_flight = self._in_flight
        for sample in self._writer.clear():
            self._over(sample, State.STOPPED, reason)
        self._scores.stop(reason)
        return in_flight

    def sample_of(self, call: CallId) -> Sample | None:
        """The sample that a running call writes."""
        running = self._writer.running.get(call)
        return None if running is None else running.sample

    def drop(self, sample: Sample, reason: str) -> list[CallId]:
        """End one sample that is under way, for good. Returns its call in flight, for cancelling."""
        calls = self._writer.drop(sample)
        self._count(sample)
        self._over(sample, State.FILTERED, reason)
        return calls

    @property
    def _in_flight(self) -> list[CallId]:
        return sorted([*self._writer.running, *self._scores.in_flight])

    def _wanting(self, slots: int) -> list[Sample]:
        """Samples that could run now, those under way first; new ones are not yet entered."""
        running, waiting = self._writer.running, self._writer.waiting
        if slots < 1 or (not self._prefilled and running):
            return []
        wanting = sorted(waiting, key=lambda s: (not s.awake, s.index))
        free = self.width - len(running) - len(waiting)
        start = len(self.samples)
        wanting += [Sample(start + i) for i in range(max(0, min(free, self.startable)))]
        return wanting[:slots]

    def _end_slice(self, running: Running, event: Generated) -> None:
        sample = running.sample
        if event.finish == "stop":
            self._complete(sample)
        elif event.finish == "context":
            self._truncate(sample, "context full")
        elif sample.tokens >= self._limit or (running.segment.whole and event.finish == "length"):
            self._truncate(sample, self._limit_reason)
        elif running.tokens == 0:
            # Continuing it could go on for ever.
            self._fail(sample, "the engine ended a slice by length without a token")
        else:
            self._writer.rest(sample, event)

    def _complete(self, sample: Sample) -> None:
        outcome = read_outcome(self._writer.text(sample), self._ground.limits)
        sample.state = State.COMPLETE
        self._count(sample)
        sample.has_text, sample.visible = outcome.has_text, outcome.visible
        sample.answer, sample.key, sample.calls_tools = outcome.answer, outcome.key, outcome.calls_tools
        self._scores.want(sample)

    def _truncate(self, sample: Sample, reason: str) -> None:
        self._count(sample)
        self._over(sample, State.TRUNCATED, reason)

    def _fail(self, sample: Sample, reason: str) -> None:
        self.failed += 1
        self._over(sample, State.FAILED, reason)

    def _over(self, sample: Sample, state: State, reason: str) -> None:
        sample.state, sample.reason = state, reason
        self._memory.retire(sample)

    def _count(self, sample: Sample) -> None:
        self._ended += 1
        self._ended_tokens += sample.tokens
