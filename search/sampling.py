"""What all techniques that draw whole samples share: the ask/tell frame round a `Rollout`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from search.contract import Branch, Call, CallId, Candidate, Chunk, Equated, Event, Room
from search.ground import Ground
from search.grouping import Grouping
from search.rollout import Plan, Rollout
from search.sample import Sample, State
from search.tree import Tree


class SampleSearch(ABC):
    """A search over independent whole samples.

    A technique says what to make of a sample that ended (`_take`), when it has seen enough (`_enough`),
    which complete sample is the answer (`_choose`) and how the others stand to it (`_fate`).

    `best()` is, in this order: a complete sample with text, as the technique chooses; the longest text,
    cut short or not yet ended; a sample of some tokens without text; None.
    """

    def __init__(self, ground: Ground, plan: Plan) -> None:
        self._rollout = Rollout(ground, plan)
        self._begin = ground.root
        self._grouping = Grouping(ground.calls, enabled=ground.limits.equate and plan.n > 1)
        self._complete: list[Sample] = []  # those with text
        self._ended: set[int] = set()  # numbers of all complete ones
        self._chosen: Candidate | None = None
        self._stop_reason: str | None = None

    @property
    def tree(self) -> Tree:
        return self._rollout.tree

    @property
    def finished(self) -> bool:
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        return self._stop_reason

    def ask(self, room: Room) -> list[Call]:
        if self.finished:
            return []
        equates = self._grouping.ask(room.slots)
        return [*equates, *self._rollout.ask(replace(room, slots=room.slots - len(equates)))]

    def tell(self, event: Event) -> list[CallId]:
        if self.finished:
            return []
        if isinstance(event, Chunk):
            return self._watched(event)
        if event.call in self._grouping.in_flight:
            self._join(event)
            return self._ended_by(self._reason_to_stop())
        samples = self._rollout.tell(event)
        if not samples:
            return []
        cancels: list[CallId] = []
        for sample in samples:
            if sample.state is State.COMPLETE and sample.index not in self._ended:
                self._ended.add(sample.index)
                if sample.has_text:
                    self._complete.append(sample)
                if sample.key is not None and not sample.calls_tools:
                    self._grouping.note(sample.key, sample.answer or "")
                    sample.key = self._grouping.key(sample.key)
            if sample.has_text:
                cancels += self._take(sample)
        if any(sample.has_text for sample in samples):
            self._chosen = self._choose()
        return cancels + self._ended_by(self._reason_to_stop())

    def _watched(self, chunk: Chunk) -> list[CallId]:
        sample = self._rollout.sample_of(chunk.call)
        self._rollout.tell(chunk)
        if sample is None:
            return []
        reason = self._spoils(sample, chunk)
        if reason is None:
            return []
        cancels = self._rollout.drop(sample, reason)
        return cancels + self._ended_by(self._reason_to_stop())

    def _join(self, event: Event) -> None:
        joined = self._grouping.tell(event.call, event.same if isinstance(event, Equated) else None)
        if joined is None:
            return
        key, into = joined
        for sample in self._complete:
            if sample.key == key:
                sample.key = into
        self._merge(key, into)
        if self._complete:
            self._chosen = self._choose()

    def _reason_to_stop(self) -> str | None:
        if self._grouping.pending:
            # A vote is not decided while its groups may still be joined.
            return None
        return self._all_done() if self._rollout.done else self._enough()

    def _ended_by(self, reason: str | None) -> list[CallId]:
        self._stop_reason = reason
        if reason is None:
            return []
        cancels = [*self._grouping.in_flight, *self._rollout.stop(reason)]
        self._grouping.stop()
        return cancels

    def release(self) -> None:
        if self._grouping.in_flight:
            raise RuntimeError(f"{len(self._grouping.in_flight)} calls are in flight")
        self._rollout.release()

    def best(self) -> Candidate | None:
        longest = self._rollout.longest
        if self._chosen is not None or longest is None:
            return self._chosen
        ended = longest.state is State.COMPLETE
        return Candidate(longest.nodes[-1], answer=None, key=None, complete=ended, begin=self._begin)

    def gain(self) -> float:
        return 0.0 if self.finished else self._expected_gain() / self._rollout.expected_tokens

    def branches(self) -> Sequence[Branch]:
        return [self._branch(sample) for sample in self._rollout.samples]

    @abstractmethod
    def _take(self, sample: Sample) -> list[CallId]:
        """A complete sample with text came in, or its score did. Returns calls to cancel."""

    @abstractmethod
    def _merge(self, key: str, into: str) -> None:
        """Two answers turned out to be the same; all samples of `key` now have the key `into`."""

    def _spoils(self, sample: Sample, chunk: Chunk) -> str | None:
        """The reason to end a running sample for good after this chunk; None to let it go on."""
        return None

    @abstractmethod
    def _choose(self) -> Candidate | None:
        """The answer among the complete samples, of which there is at least one."""

    @abstractmethod
    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        """Fate and reason of a complete sample that has an answer."""

    def _enough(self) -> str | None:
        """The reason to stop before all samples have come; None to go on."""
        return None

    @abstractmethod
    def _expected_gain(self) -> float:
        """Expected improvement (0..1) of the answer by one more sample."""

    def _all_done(self) -> str:
        if self._complete:
            return "all_done"
        states = {s.state for s in self._rollout.samples}
        if states == {State.FAILED}:
            return "all_failed"
        return "all_truncated" if State.COMPLETE not in states else "no_answers"

    def _branch(self, sample: Sample) -> Branch:
        fate, reason = self._fate_of(sample)
        return Branch(tuple(sample.nodes), sample.generated, sample.answer, sample.score, fate, reason)

    def _fate_of(self, sample: Sample) -> tuple[str, str]:
        if sample.state is State.WAITING:
            return "running", "waiting for room"
        if sample.state is not State.COMPLETE:
            return str(sample.state), sample.reason
        chosen = self._chosen
        if chosen is not None and chosen.node == sample.nodes[-1]:
            return "chosen", self._why_chosen(chosen)
        if sample.key is None or chosen is None:
            return "no_answer", "no final answer in its text" if sample.has_text else "empty text"
        return self._fate(sample, chosen)

    @abstractmethod
    def _why_chosen(self, chosen: Candidate) -> str:
        """Why the chosen one was chosen."""


def first_by_visibility(samples: Sequence[Sample]) -> Sample:
    """The earliest sample with text outside thinking, or the earliest of all when none has any."""
    return min(samples, key=lambda s: (not s.visible, s.index))
