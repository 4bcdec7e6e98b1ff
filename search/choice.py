"""Choosing among finished answers by their scores, or by a vote where nothing could be scored.

Ranking: those with an answer and a score; then those with an answer whose score failed or has not come, by
majority vote among themselves; then those without an answer, by score. So a failing verifier never passes for
`wrong`. An answer that a check found wrong ranks behind all that it did not. Empty text never wins. Equal
standing goes to the earliest one, and the tie is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from search.ballot import Ballot
from search.contract import Candidate


class Finished(Protocol):
    """A finished path: a sample, or the last step of a tree's branch. Its text is not blank."""

    @property
    def index(self) -> int: ...
    @property
    def nodes(self) -> Sequence[int]: ...
    @property
    def visible(self) -> bool: ...
    @property
    def answer(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def score_reason(self) -> str: ...
    @property
    def verdict(self) -> str | None: ...


class Choice:
    """The standing of the finished answers of one search.

    Args:
        weighted: the weights of equal answers are added up, and the best one of the strongest group is taken;
            else the one with the highest score.
        begin: where the texts start.
    """

    def __init__(self, *, weighted: bool, begin: int) -> None:
        self._weighted = weighted
        self._begin = begin
        self._all: dict[int, Finished] = {}
        self._votes = Ballot()
        self._scores = Ballot()
        self._scored: dict[int, Finished] = {}
        self._top: Finished | None = None

    @property
    def scored(self) -> bool:
        """Whether any answer has a score."""
        return self._top is not None

    @property
    def answered(self) -> int:
        """How many have an answer."""
        return len(self._votes)

    def take(self, finished: Finished, weight: float | None = None) -> None:
        """Count a finished path with text, or its score once that has come. Twice changes nothing.

        Args:
            weight: of a path with a score, beside others; None for the score itself.
        """
        known = finished.index in self._all
        self._all[finished.index] = finished
        if finished.key is None:
            return
        if not known:
            self._votes.add(finished.key, finished.index)
        if finished.score is not None and finished.index not in self._scored:
            self._scored[finished.index] = finished
            self._scores.add(finished.key, finished.index, finished.score if weight is None else weight)
            if self._top is None or rank(finished) < rank(self._top):
                self._top = finished

    def merge(self, key: str, into: str) -> None:
        """Two answers are the same; the finished ones have their new key already."""
        self._votes.merge(key, into)
        self._scores.merge(key, into)

    def candidate(self) -> Candidate | None:
        """The answer as things stand; None when nothing has finished."""
        if not self._all:
            return None
        if self._top is not None:
            return self._by_scores(self._top)
        standing = self._votes.standing()
        if standing is not None:
            return self._made(self._all[standing.samples[0]], standing.share, standing.tie)
        return self._made(min(self._all.values(), key=rank), 1.0, tie=False)

    def why(self, chosen: Candidate) -> str:
        """Why this candidate was chosen."""
        if chosen.key is None:
            return "no sample wrote a final answer"
        if self._top is None:
            return f"{chosen.support:.0%} of the votes; no sample has a score"
        if self._weighted:
            why = f"{chosen.support:.0%} of the score mass is for {chosen.answer}"
        else:
            why = f"the highest score, {chosen.score:.3f}"
        return f"{why}, a tie that the earliest sample decides" if chosen.tie else why

    def fate(self, finished: Finished, chosen: Candidate) -> tuple[str, str]:
        """Fate and reason of a finished path with an answer that was not chosen."""
        if finished.verdict == "wrong":
            return "wrong", "a check found it wrong"
        if finished.key == chosen.key:
            return "agreed", "the same answer as the chosen one"
        if self._top is None:
            return "outvoted", self.why(chosen)
        return "outscored", finished.score_reason or self.why(chosen)

    def _by_scores(self, top: Finished) -> Candidate:
        standing = self._scores.standing()
        assert standing is not None
        if self._weighted:
            best = min((self._all[i] for i in standing.samples), key=rank)
            return self._made(best, standing.share, standing.tie)
        groups = {g.key: g for g in self._scores.groups()}
        own = groups[top.key or ""]
        mass = sum(g.weight for g in groups.values())
        share = float(own.weight / mass) if mass else len(own.votes) / len(self._scores)
        tie = any(f.score == top.score and f.key != top.key for f in self._scored.values())
        return self._made(top, share, tie)

    def _made(self, f: Finished, support: float, tie: bool) -> Candidate:
        return Candidate(
            f.nodes[-1], f.answer, f.key, True, score=f.score, support=support, tie=tie, begin=self._begin
        )


def rank(finished: Finished) -> tuple[bool, bool, bool, float, int]:
    """Sort key, best first: text outside thinking, not wrong, scored, the higher score, the earlier one."""
    return (
        not finished.visible,
        finished.verdict == "wrong",
        finished.score is None,
        -(finished.score or 0.0),
        finished.index,
    )
