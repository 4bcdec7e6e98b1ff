"""Putting complete samples to the verifier within a room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from search.contract import Call, CallId, Check, Checked, Failed, Room, Score, Scored
from search.ground import Ground
from search.sample import Sample
from search.sample_memory import SampleMemory
from search.score_queue import ScoreQueue

Verify: TypeAlias = Literal["none", "score", "check"]


class SampleScores:
    """The scores of one search over samples.

    Args:
        ground: what the samples are drawn from.
        memory: the KV that they hold.
        verify: what is asked about each complete sample: nothing, its score, or whether it is right.
        batch: complete samples that are scored together while others run.
    """

    def __init__(self, ground: Ground, memory: SampleMemory, verify: Verify, batch: int) -> None:
        costs = ground.costs
        self.tokens = {"none": 0, "score": costs.score_tokens, "check": costs.check_tokens}[verify]
        """Charged tokens of one score at most."""
        self._ground = ground
        self._memory = memory
        self._verify = verify
        self._batch = batch
        self._queue = ScoreQueue()

    def __len__(self) -> int:
        """Samples that wait or are being scored, without those that share another's score."""
        return len(self._queue)

    @property
    def waiting(self) -> Sequence[Sample]:
        """Samples that are to be scored and were not asked about yet."""
        return self._queue.waiting

    @property
    def in_flight(self) -> list[CallId]:
        return list(self._queue.asked)

    def want(self, sample: Sample) -> None:
        """A sample is complete. Its KV is let go of unless it is to be scored itself: there may be nothing to
        score, or a score to share with one of the very same tokens.
        """
        scored = self._verify != "none" and sample.visible
        if not scored or not self._queue.add(sample, self._generated(sample)):
            self._memory.retire(sample)

    def ask(self, room: Room, others: Sequence[Sample], *, running: bool) -> list[Call]:
        """Scores to start, when a batch is full or no sample is running.

        One whose sample is asleep and does not fit lets the others go first.

        Args:
            others: samples whose KV makes way if nothing else is in flight, the youngest last.
            running: whether any sample is running.
        """
        if running and len(self._queue.waiting) < self._batch:
            return []
        tree = self._ground.tree
        tokens, live = room.tokens, tree.live_tokens
        calls: list[Call] = []
        for sample in list(self._queue.waiting):
            if len(calls) >= room.slots or tokens < self.tokens:
                break
            idle = not (running or self._queue.asked)
            if not self._wake(sample, room.kv_tokens - (tree.live_tokens - live), others if idle else ()):
                continue
            tokens -= self.tokens
            kind = Check if self._verify == "check" else Score
            call = kind(next(self._ground.calls), sample.nodes[-1], self._ground.root)
            self._queue.ask(sample, call.id)
            calls.append(call)
        return calls

    def tell(self, event: Scored | Checked | Failed) -> list[Sample]:
        """Take in an event. Returns the samples whose score it settles, none when the call is not known."""
        match event:
            case Scored():
                samples = self._queue.take(event.call, event.score)
            case Checked():
                samples = self._queue.take_check(event.call, event.verdict, event.score)
            case Failed():
                samples = self._queue.fail(event.call, event.reason)
        for sample in samples:
            self._memory.retire(sample)
        return samples

    def stop(self, reason: str) -> None:
        """Give up all scores that have not come."""
        for sample in self._queue.stop(reason):
            self._memory.retire(sample)

    def _wake(self, sample: Sample, kv_tokens: int, others: Sequence[Sample]) -> bool:
        """Have a sample's KV held, if it can be. That of `others` makes way for it, if that is enough."""
        if sample.awake:
            return True
        need = sample.tokens + self._memory.prompt_wake
        if need <= kv_tokens + sum(s.tokens for s in others if s.awake):
            kv_tokens = self._memory.put_to_sleep(others, need, kv_tokens)
        if need > kv_tokens:
            return False
        self._memory.wake(sample)
        return True

    def _generated(self, sample: Sample) -> tuple[int, ...]:
        return tuple(token for node in sample.nodes for token in self._ground.tree[node].token_ids)
