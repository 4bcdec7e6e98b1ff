"""Drawing whole samples: the machinery shared by all techniques that do nothing else with the engine.

A sample is a chain of nodes. With ample room it is one `Generate` of all its tokens. When tokens or KV are
short the room is divided over the samples that want to run (`search.slices`); one whose slice ended before
its own limit is continued from its node. So token caps are exact without giving up width. Under
`SampleLimits.whole` nothing is sliced: a sample that does not fit waits.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, replace
from typing import Literal

from search.contract import (
    Call,
    CallId,
    Check,
    Checked,
    Chunk,
    Event,
    Failed,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
)
from search.ground import Ground
from search.outcome import read_outcome
from search.sample import Sample, State
from search.score_queue import ScoreQueue
from search.seeds import derive_seed
from search.segments import THINK_AGAIN, Segment, Segments
from search.slices import MIN_SLICE, Want, divide, fit_whole
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
    verify: Literal["none", "score", "check"] = "none"
    score_batch: int = 1
    logprobs: int = 0


@dataclass(slots=True)
class _Running:
    """A `Generate` in flight.

    `after`: tokens that its sample may still take when this call has used up its own.
    """

    sample: Sample
    segment: Segment
    after: int
    tokens: int = 0


class Rollout:
    """Draws samples by ask/tell and scores the complete ones if the plan says so.

    Args:
        ground: what it is built on; its root leaves at least one token of context.
        plan: how many samples.
    """

    def __init__(self, ground: Ground, plan: Plan) -> None:
        self.tree: Tree = ground.tree
        self.samples: list[Sample] = []
        self.failed = 0
        self.width = plan.width
        self._ground = ground
        self._plan = plan
        self._limit = ground.sample_tokens
        self._segments = Segments(ground.limits, ground.phrases, self._limit)
        self._limit_reason = (
            "max_new_tokens reached"
            if ground.limits.max_new_tokens <= ground.context_left
            else "context full"
        )
        costs = ground.costs
        self._verify_tokens = {"none": 0, "score": costs.score_tokens, "check": costs.check_tokens}[
            plan.verify
        ]
        self._unpaid = ground.unpaid
        self._running: dict[CallId, _Running] = {}
        self._scores = ScoreQueue()
        self._waiting: list[Sample] = []
        self._prefilled = plan.n == 1
        self._longest: Sample | None = None
        self._ended_tokens = 0
        self._ended = 0

    @property
    def startable(self) -> int:
        """Samples that may still be started, as things stand now."""
        tries = self._plan.n + min(self.failed, self._plan.max_retries)
        return max(0, tries - len(self.samples))

    @property
    def under_way(self) -> list[int]:
        """Numbers of the samples that run or wait for room, in their order."""
        running = (running.sample.index for running in self._running.values())
        return sorted([*running, *(sample.index for sample in self._waiting)])

    @property
    def remaining(self) -> int:
        """Samples that may still complete: under way or not yet started."""
        return len(self._running) + len(self._waiting) + self.startable

    @property
    def done(self) -> bool:
        """Nothing is in flight and nothing is left to ask."""
        return not self._scores and self.remaining == 0

    @property
    def longest(self) -> Sample | None:
        """The sample with the longest text, of equals the one of most tokens, then the earliest.

        None when there is not one token.
        """
        return self._longest

    @property
    def expected_tokens(self) -> float:
        """Charged tokens that one more sample is expected to take: the mean of those that ended so far,
        or the limit before the first one, and its score."""
        mean = self._ended_tokens / self._ended if self._ended else float(self._limit)
        return max(1.0, mean) + self._verify_tokens

    def ask(self, room: Room) -> list[Call]:
        """Scores first, since they turn samples into answers; then samples under way; then new ones.

        The live tree never grows by more than `room.kv_tokens` in all: a sample that is put to sleep makes
        room for the slice of another in the same call.
        """
        live = self.tree.live_tokens
        calls: list[Call] = []
        if len(self._scores.waiting) >= self._plan.score_batch or not self._running:
            calls += self._score(room)
        wanting = self._wanting(room.slots - len(calls))
        if not wanting:
            return calls
        scores = len(calls) + len(self._scores.waiting) + len(self._running)
        tokens = room.tokens - self._verify_tokens * scores - self._unpaid
        segments = [self._segment(sample) for sample in wanting]
        slices = self._slices(wanting, segments, tokens, room.kv_tokens - (self.tree.live_tokens - live))
        served = len(slices) if self._prefilled else 1
        for sample, segment, slice_ in list(zip(wanting, segments, slices, strict=False))[:served]:
            calls.append(self._generate(sample, segment, slice_))
        return calls

    def tell(self, event: Event) -> list[Sample]:
        """Take in an event. Returns the samples that ended or whose score came."""
        if isinstance(event, Chunk):
            self._grow(event)
        elif isinstance(event, Generated):
            running = self._running.pop(event.call, None)
            ended = None if running is None else self._end_slice(running, event)
            return [] if ended is None else [ended]
        elif isinstance(event, Scored):
            return self._retired(self._scores.take(event.call, event.score))
        elif isinstance(event, Checked):
            return self._retired(self._scores.take_check(event.call, event.verdict, event.score))
        elif isinstance(event, Failed):
            return self._fail(event)
        return []

    def release(self) -> None:
        """No KV is held any more: all paths, and the prompt, are prefilled again when their turn comes.

        Raises:
            RuntimeError: calls are in flight.
        """
        if self._running or self._scores.asked:
            raise RuntimeError(f"{len(self._running) + len(self._scores.asked)} calls are in flight")
        self.tree.release()
        for sample in [*self._waiting, *self._scores.waiting]:
            sample.awake = False
        self._prefilled = self._plan.n == 1

    def stop(self, reason: str) -> list[CallId]:
        """End all that is under way. Returns the calls in flight, for cancelling."""
        in_flight = sorted([*self._running, *self._scores.asked])
        for sample in [*(r.sample for r in self._running.values()), *self._waiting]:
            sample.state, sample.reason = State.STOPPED, reason
            self._retire(sample)
        for sample in self._scores.stop(reason):
            self._retire(sample)
        self._running.clear()
        self._waiting.clear()
        return in_flight

    def sample_of(self, call: CallId) -> Sample | None:
        """The sample that a running call writes."""
        running = self._running.get(call)
        return None if running is None else running.sample

    def drop(self, sample: Sample, reason: str) -> list[CallId]:
        """End one sample that is under way, for good. Returns its call in flight, for cancelling."""
        calls = [call for call, running in self._running.items() if running.sample is sample]
        for call in calls:
            del self._running[call]
        if sample in self._waiting:
            self._waiting.remove(sample)
        sample.state, sample.reason = State.FILTERED, reason
        self._count(sample)
        self._retire(sample)
        return calls

    def _wanting(self, slots: int) -> list[Sample]:
        """Samples that could run now, those under way first; new ones are not yet entered."""
        if slots < 1 or (not self._prefilled and self._running):
            return []
        wanting = sorted(self._waiting, key=lambda s: (not s.awake, s.index))
        free = self.width - len(self._running) - len(self._waiting)
        start = len(self.samples)
        wanting += [Sample(start + i) for i in range(max(0, min(free, self.startable)))]
        return wanting[:slots]

    def _score(self, room: Room) -> list[Call]:
        """Scores to start. One whose sample is asleep and does not fit lets the others go first."""
        score_tokens = self._verify_tokens
        tokens, live = room.tokens, self.tree.live_tokens
        calls: list[Call] = []
        for sample in list(self._scores.waiting):
            if len(calls) >= room.slots or tokens < score_tokens:
                break
            if not self._wake(sample, room.kv_tokens - (self.tree.live_tokens - live)):
                continue
            tokens -= score_tokens
            kind = Check if self._plan.verify == "check" else Score
            call = kind(next(self._ground.calls), sample.nodes[-1], self._ground.root)
            self._scores.ask(sample, call.id)
            calls.append(call)
        return calls

    def _wake(self, sample: Sample, kv_tokens: int) -> bool:
        if sample.awake:
            return True
        need = sample.tokens + self._prompt_wake
        if not (self._running or self._scores.asked):
            held = sum(s.tokens for s in self._waiting if s.awake)
            if need <= kv_tokens + held:
                kv_tokens = self._put_to_sleep(self._waiting, need, kv_tokens)
        if need > kv_tokens:
            return False
        sample.awake = True
        self.tree.wake(sample.nodes[-1])
        return True

    def _segment(self, sample: Sample) -> Segment:
        text = ""
        if sample.nodes and self._ground.limits.thinking is not None:
            text = self.tree.path_text(sample.nodes[-1], self._ground.root)
        segment = self._segments.next(text, sample.tokens, sample.thought)
        assert segment is not None, "a sample without tokens left has ended"
        if sample.again:
            phrase = self._ground.phrases[THINK_AGAIN]
            segment = replace(
                segment, phrase=THINK_AGAIN, max_tokens=segment.max_tokens - len(phrase.token_ids)
            )
        return segment

    def _given(self, segment: Segment) -> int:
        return 0 if segment.phrase is None else len(self._ground.phrases[segment.phrase].token_ids)

    def _slices(
        self, wanting: list[Sample], segments: list[Segment], tokens: int, kv_tokens: int
    ) -> list[int]:
        score_tokens = self._verify_tokens
        wants = [
            Want(segment.max_tokens, 0 if s.awake else s.tokens, self._given(segment))
            for s, segment in zip(wanting, segments, strict=True)
        ]
        # What is served is a beginning of the wants, so that the first one prefills the prompt.
        wants[0] = replace(wants[0], wake=wants[0].wake + self._prompt_wake)
        if self._ground.limits.whole:
            return self._fit_whole(wanting, wants, tokens, kv_tokens, segments)
        slices = divide(wants, tokens, kv_tokens, score_tokens)
        if slices or self._running or self._scores.asked:
            return slices
        others = [s for s in self._waiting if s is not wanting[0]]
        least = wants[0].wake + wants[0].given + min(MIN_SLICE, wants[0].rest)
        kv_tokens = self._put_to_sleep(others, least, kv_tokens)
        return divide(wants[:1], tokens, kv_tokens, score_tokens, floor=1)

    def _fit_whole(
        self, wanting: list[Sample], wants: list[Want], tokens: int, kv_tokens: int, segments: list[Segment]
    ) -> list[int]:
        """Slices where answers are one call each.

        A sample that thinks first starts only where its answer has room too: several that have thought, and
        have no room left to answer in, would be of no use.
        """
        held = sum(running.after for running in self._running.values())
        wants = [
            replace(want, rest=self._limit - sample.tokens - want.given)
            for sample, want in zip(wanting, wants, strict=True)
        ]
        slices = fit_whole(wants, tokens - held, kv_tokens - held, self._verify_tokens)
        if not slices and not (self._running or self._scores.asked):
            others = [s for s in self._waiting if s is not wanting[0]]
            need = wants[0].wake + wants[0].given + wants[0].rest
            kv_tokens = self._put_to_sleep(others, need, kv_tokens)
            slices = fit_whole(wants[:1], tokens, kv_tokens, self._verify_tokens)
        return [segment.max_tokens for segment in segments[: len(slices)]]

    @property
    def _prompt_wake(self) -> int:
        return self.tree.wake_cost(self._ground.root)

    def _put_to_sleep(self, samples: list[Sample], need: int, kv_tokens: int) -> int:
        """Let the youngest go until there is room for `need`. Returns the KV tokens that are free then.

        For when nothing in flight will free any: samples that hold KV waiting for each other's would wait
        for ever.
        """
        for sample in [s for s in reversed(samples) if s.awake]:
            if kv_tokens >= need:
                break
            sample.awake = False
            self._retire(sample)
            kv_tokens += sample.tokens
        return kv_tokens

    def _generate(self, sample: Sample, segment: Segment, slice_: int) -> Generate:
        if sample.nodes:
            self._waiting.remove(sample)
        else:
            self.samples.append(sample)
        parent = sample.nodes[-1] if sample.nodes else self._ground.root
        given = self._given(segment)
        if segment.phrase is not None:
            phrase = self._ground.phrases[segment.phrase]
            parent = self.tree.add_given(parent, phrase.token_ids, phrase.text)
            sample.nodes.append(parent)
            sample.tokens += given
            sample.thought += given if segment.thinking else 0
            sample.again = False
        node = self.tree.add(parent)
        seed = derive_seed(self._ground.seed, sample.index, len(sample.nodes))
        sample.nodes.append(node)
        sample.state, sample.awake = State.RUNNING, True
        call = Generate(
            next(self._ground.calls),
            parent,
            node,
            slice_,
            seed,
            given_tokens=given + self._unpaid,
            until=segment.until,
            logprobs=self._plan.logprobs,
            constrained=segment.constrained and self._ground.constrained,
            tier=self._ground.tier,
        )
        self._unpaid = 0
        self._running[call.id] = _Running(sample, segment, after=self._limit - sample.tokens - slice_)
        return call

    def _grow(self, chunk: Chunk) -> None:
        running = self._running.get(chunk.call)
        if running is None:
            return
        sample = running.sample
        self.tree.extend(sample.nodes[-1], chunk.token_ids, chunk.text)
        running.tokens += len(chunk.token_ids)
        sample.tokens += len(chunk.token_ids)
        sample.generated += len(chunk.token_ids)
        if running.segment.thinking:
            sample.thought += len(chunk.token_ids)
        sample.chars += len(chunk.text)
        if not sample.generated:
            return
        self._prefilled = True
        best = self._longest
        if best is None or (sample.chars, sample.tokens, -sample.index) > (
            best.chars,
            best.tokens,
            -best.index,
        ):
            self._longest = sample

    def _end_slice(self, running: _Running, event: Generated) -> Sample | None:
        sample = running.sample
        self._prefilled = True
        if event.finish == "stop":
            self._complete(sample)
        elif event.finish == "context":
            self._truncate(sample, "context full")
        elif sample.tokens >= self._limit or (running.segment.whole and event.finish == "length"):
            self._truncate(sample, self._limit_reason)
        elif running.tokens == 0:
            # Continuing it could go on for ever.
            self._fail_sample(sample, "the engine ended a slice by length without a token")
        else:
            self._think_again(sample, event)
            sample.state = State.WAITING
            insort(self._waiting, sample, key=lambda s: s.index)
            return None
        return sample

    def _think_again(self, sample: Sample, event: Generated) -> None:
        """Take back the end of a thinking section that is to go on."""
        cut, marker = event.matched_tokens, event.matched or ""
        thinking = self._ground.limits.thinking
        if not cut or thinking is None or marker != thinking.close:
            return
        text = self.tree.path_text(sample.nodes[-1], self._ground.root).removesuffix(marker)
        tokens, thought = sample.tokens - cut, sample.thought - cut
        if not self._segments.may_think_again(text, tokens, thought, sample.continued):
            return
        self.tree.cut(sample.nodes[-1], cut, len(marker))
        sample.tokens, sample.thought = tokens, thought
        sample.chars -= len(marker)
        sample.continued += 1
        sample.again = True

    def _complete(self, sample: Sample) -> None:
        outcome = read_outcome(self.tree.path_text(sample.nodes[-1], self._ground.root), self._ground.limits)
        sample.state = State.COMPLETE
        self._count(sample)
        sample.has_text, sample.visible = outcome.has_text, outcome.visible
        sample.answer, sample.key, sample.calls_tools = outcome.answer, outcome.key, outcome.calls_tools
        scored = self._plan.verify != "none" and sample.visible
        if not scored or not self._scores.add(sample, self._generated(sample)):
            self._retire(sample)

    def _generated(self, sample: Sample) -> tuple[int, ...]:
        return tuple(token for node in sample.nodes for token in self.tree[node].token_ids)

    def _truncate(self, sample: Sample, reason: str) -> None:
        sample.state, sample.reason = State.TRUNCATED, reason
        self._count(sample)
        self._retire(sample)

    def _count(self, sample: Sample) -> None:
        self._ended += 1
        self._ended_tokens += sample.tokens

    def _retired(self, samples: list[Sample]) -> list[Sample]:
        for sample in samples:
            self._retire(sample)
        return samples

    def _fail(self, event: Failed) -> list[Sample]:
        if event.call in self._running:
            sample = self._running.pop(event.call).sample
            self._prefilled = True
            self._fail_sample(sample, event.reason)
            return [sample]
        return self._retired(self._scores.fail(event.call, event.reason))

    def _fail_sample(self, sample: Sample, reason: str) -> None:
        sample.state, sample.reason = State.FAILED, reason
        self.failed += 1
        self._retire(sample)

    def _retire(self, sample: Sample) -> None:
        for node in sample.nodes:
            self.tree.retire(node)
