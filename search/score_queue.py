"""Which complete samples wait for their score, which are being scored, and which share one.

Samples of the very same tokens have the same score, so only the first of them is put to the verifier.
"""

from __future__ import annotations

from collections.abc import Sequence

from search.contract import CallId
from search.sample import Sample, Scoring


class ScoreQueue:
    """The scores of one search."""

    def __init__(self) -> None:
        self.waiting: list[Sample] = []
        self.asked: dict[CallId, Sample] = {}
        self._first: dict[tuple[int, ...], Sample] = {}
        self._twins: dict[int, list[Sample]] = {}

    def __len__(self) -> int:
        """Samples that wait or are being scored, without those that share another's score."""
        return len(self.waiting) + len(self.asked)

    def add(self, sample: Sample, token_ids: tuple[int, ...]) -> bool:
        """Take in a complete sample; `token_ids` are all that it generated.

        Returns whether it has to be scored itself, so that its KV is still wanted.
        """
        first = self._first.setdefault(token_ids, sample)
        if first is sample:
            sample.scoring = Scoring.WANTED
            self.waiting.append(sample)
            return True
        if first.scoring in (Scoring.DONE, Scoring.FAILED):
            _share(first, sample)
        else:
            sample.scoring = Scoring.ASKED
            self._twins.setdefault(first.index, []).append(sample)
        return False

    def ask(self, sample: Sample, call: CallId) -> None:
        """A waiting sample is put to the verifier by this call."""
        self.waiting.remove(sample)
        sample.scoring = Scoring.ASKED
        self.asked[call] = sample

    def take(self, call: CallId, score: float) -> list[Sample]:
        """A score came. Returns the samples that have it, none when the call is not known."""
        sample = self.asked.pop(call, None)
        if sample is None:
            return []
        if 0.0 <= score <= 1.0:
            sample.scoring, sample.score = Scoring.DONE, score
        else:
            sample.scoring, sample.score_reason = Scoring.FAILED, f"score {score} is not in 0..1"
        return self._settle(sample)

    def take_check(self, call: CallId, verdict: str, score: float | None) -> list[Sample]:
        """A verdict came. Right counts as 1, wrong as 0; an error is no verdict."""
        if verdict == "error" or (verdict == "unsure" and score is None):
            return self.fail(call, "the check failed" if verdict == "error" else "the check could not tell")
        sample = self.asked.get(call)
        if sample is None:
            return []
        sample.verdict = verdict
        return self.take(call, {"right": 1.0, "wrong": 0.0}.get(verdict, score or 0.0))

    def fail(self, call: CallId, reason: str) -> list[Sample]:
        """A score failed. Returns the samples that go without."""
        sample = self.asked.pop(call, None)
        if sample is None:
            return []
        sample.scoring, sample.score_reason = Scoring.FAILED, f"not scored: {reason}"
        return self._settle(sample)

    def stop(self, reason: str) -> Sequence[Sample]:
        """Give up all scores that have not come. Returns the samples that were to be scored."""
        given_up = [*self.asked.values(), *self.waiting]
        self.asked.clear()
        self.waiting.clear()
        for sample in given_up:
            sample.scoring, sample.score_reason = Scoring.FAILED, f"not scored: {reason}"
            self._settle(sample)
        return given_up

    def _settle(self, sample: Sample) -> list[Sample]:
        twins = self._twins.pop(sample.index, [])
        for twin in twins:
            _share(sample, twin)
        return [sample, *twins]


def _share(source: Sample, twin: Sample) -> None:
    twin.scoring, twin.score, twin.score_reason = source.scoring, source.score, source.score_reason
    twin.verdict = source.verdict
