"""Drawing whole samples: the machinery shared by all techniques that do nothing else with the engine.

A sample is a chain of nodes. With ample room it is one `Generate` of all its tokens. When tokens or KV are
short the room is divided over the samples that want to run (`search.slices`); one whose slice ended before
its own limit is continued from its node. So token caps are exact without giving up width. Under
`SampleLimits.whole` nothing is sliced: a sample that does not fit waits.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, replace

from search.contract import (
    Call,
    CallId,
    Chunk,
    Event,
    Failed,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
)
from search.equivalence import answer_key
from search.extract import final_answer, visible_text
from search.sample import Sample, SampleLimits, State
from search.score_queue import ScoreQueue
from search.seeds import derive_seed
from search.slices import MIN_SLICE, Want, divide, fit_whole
from search.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Plan:
    """How many samples to draw.

    Args:
        n: samples wanted.
        width: how many are under way at once (running or waiting for room).
        max_retries: how many failed ones may be replaced; at most `n + max_retries` are ever started.
        score_tokens: what scoring one sample costs; None when the technique does not score.
        score_batch: complete samples that are scored together. Fewer are scored only when none runs: each
            score interrupts the engine's decoding, and one batch of them does so once.
    """

    n: int
    width: int
    max_retries: int
    score_tokens: int | None = None
    score_batch: int = 1


@dataclass(slots=True)
class _Running:
    """A `Generate` in flight. `last`: its slice reaches the sample's own limit."""

    sample: Sample
    last: bool
    tokens: int = 0


class Rollout:
    """Draws samples by ask/tell and scores the complete ones if the plan says so.

    Args:
        prompt_ids: the prompt's tokens.
        limits: bounds of every sample.
        plan: how many samples.
        seed: the search's seed.

    Raises:
        ValueError: the prompt fills the context.
    """

    def __init__(self, prompt_ids: tuple[int, ...], limits: SampleLimits, plan: Plan, seed: int) -> None:
        context_left = limits.context_tokens - len(prompt_ids)
        if context_left < 1:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens and leaves no room in a context of "
                f"{limits.context_tokens}"
            )
        self.tree = Tree(prompt_ids)
        self.samples: list[Sample] = []
        self.failed = 0
        self._limits = limits
        self._plan = plan
        self._seed = seed
        self._limit = min(limits.max_new_tokens, context_left)
        self._limit_reason = (
            "max_new_tokens reached" if limits.max_new_tokens <= context_left else "context full"
        )
        self._next_call = 0
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
        return max(1.0, mean) + (self._plan.score_tokens or 0)

    def ask(self, room: Room) -> list[Call]:
        """Scores first, since they turn samples into answers; then samples under way; then new ones.

        The live tree never grows by more than `room.kv_tokens` in all: a sample that is put to sleep makes
        room for the slice of another in the same call.
        """
        score_tokens = self._plan.score_tokens or 0
        live = self.tree.live_tokens
        calls: list[Call] = []
        if len(self._scores.waiting) >= self._plan.score_batch or not self._running:
            calls += self._score(room)
        wanting = self._wanting(room.slots - len(calls))
        if not wanting:
            return calls
        tokens = room.tokens - score_tokens * (len(calls) + len(self._scores.waiting) + len(self._running))
        slices = self._slices(wanting, tokens, room.kv_tokens - (self.tree.live_tokens - live))
        for sample, slice_ in zip(wanting if self._prefilled else wanting[:1], slices, strict=False):
            calls.append(self._generate(sample, slice_))
        return calls

    def tell(self, event: Event) -> list[Sample]:
        """Take in an event. Returns the samples that ended or whose score came."""
        if isinstance(event, Chunk):
            self._grow(event)
        elif isinstance(event, Generated):
            running = self._running.pop(event.call, None)
            ended = None if running is None else self._end_slice(running, event.finish)
            return [] if ended is None else [ended]
        elif isinstance(event, Scored):
            return self._retired(self._scores.take(event.call, event.score))
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

    def _wanting(self, slots: int) -> list[Sample]:
        """Samples that could run now, those under way first; new ones are not yet entered."""
        if slots < 1 or (not self._prefilled and self._running):
            return []
        wanting = sorted(self._waiting, key=lambda s: (not s.awake, s.index))
        free = self._plan.width - len(self._running) - len(self._waiting)
        start = len(self.samples)
        wanting += [Sample(start + i) for i in range(min(free, self.startable))]
        return wanting[:slots]

    def _score(self, room: Room) -> list[Call]:
        """Scores to start. One whose sample is asleep and does not fit lets the others go first."""
        score_tokens = self._plan.score_tokens or 0
        tokens, live = room.tokens, self.tree.live_tokens
        calls: list[Call] = []
        for sample in list(self._scores.waiting):
            if len(calls) >= room.slots or tokens < score_tokens:
                break
            if not self._wake(sample, room.kv_tokens - (self.tree.live_tokens - live)):
                continue
            tokens -= score_tokens
            call = Score(self._new_call(), sample.nodes[-1])
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

    def _slices(self, wanting: list[Sample], tokens: int, kv_tokens: int) -> list[int]:
        score_tokens = self._plan.score_tokens or 0
        wants = [Want(self._limit - s.tokens, 0 if s.awake else s.tokens) for s in wanting]
        # What is served is a beginning of the wants, so that the first one prefills the prompt.
        wants[0] = replace(wants[0], wake=wants[0].wake + self._prompt_wake)
        if self._limits.whole:
            return fit_whole(wants, tokens, kv_tokens, score_tokens)
        slices = divide(wants, tokens, kv_tokens, score_tokens)
        if slices or self._running or self._scores.asked:
            return slices
        others = [s for s in self._waiting if s is not wanting[0]]
        kv_tokens = self._put_to_sleep(others, wants[0].wake + min(MIN_SLICE, wants[0].rest), kv_tokens)
        return divide(wants[:1], tokens, kv_tokens, score_tokens, floor=1)

    @property
    def _prompt_wake(self) -> int:
        return 0 if self.tree[ROOT].live else self.tree.prompt_tokens

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

    def _generate(self, sample: Sample, slice_: int) -> Generate:
        if sample.nodes:
            self._waiting.remove(sample)
        else:
            self.samples.append(sample)
        parent = sample.nodes[-1] if sample.nodes else ROOT
        node = self.tree.add(parent)
        seed = derive_seed(self._seed, sample.index, len(sample.nodes))
        sample.nodes.append(node)
        sample.state, sample.awake = State.RUNNING, True
        call = Generate(self._new_call(), parent, node, slice_, seed)
        self._running[call.id] = _Running(sample, last=sample.tokens + slice_ >= self._limit)
        return call

    def _new_call(self) -> CallId:
        self._next_call += 1
        return self._next_call

    def _grow(self, chunk: Chunk) -> None:
        running = self._running.get(chunk.call)
        if running is None:
            return
        sample = running.sample
        self.tree.extend(sample.nodes[-1], chunk.token_ids, chunk.text)
        running.tokens += len(chunk.token_ids)
        sample.tokens += len(chunk.token_ids)
        sample.chars += len(chunk.text)
        if not sample.tokens:
            return
        self._prefilled = True
        best = self._longest
        if best is None or (sample.chars, sample.tokens, -sample.index) > (
            best.chars,
            best.tokens,
            -best.index,
        ):
            self._longest = sample

    def _end_slice(self, running: _Running, finish: str) -> Sample | None:
        sample = running.sample
        self._prefilled = True
        if finish == "stop":
            self._complete(sample)
        elif finish == "context":
            self._truncate(sample, "context full")
        elif running.last or sample.tokens >= self._limit:
            self._truncate(sample, self._limit_reason)
        elif running.tokens == 0:
            # Continuing it could go on for ever.
            self._fail_sample(sample, "the engine ended a slice by length without a token")
        else:
            sample.state = State.WAITING
            insort(self._waiting, sample, key=lambda s: s.index)
            return None
        return sample

    def _complete(self, sample: Sample) -> None:
        text = self.tree.path_text(sample.nodes[-1])
        sample.state = State.COMPLETE
        self._count(sample)
        sample.has_text = bool(text.strip())
        sample.visible = bool(visible_text(text, self._limits.thinking).strip())
        answer = final_answer(text, self._limits.thinking)
        key = None if answer is None else answer_key(answer)
        if key:
            sample.answer, sample.key = answer, key
        scored = self._plan.score_tokens is not None and sample.visible
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
