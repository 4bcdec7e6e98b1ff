"""A vote ends when the posterior of its leader, by how sure each sample is of its answer, is high enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from search.ballot import Ballot
from search.params import MAX_SAMPLES, require_float, require_int

EDGE = 1e-3
"""Confidences are kept so far away from 0 and 1: no sample alone makes an answer certain."""


def posterior(ballot: Ballot) -> Mapping[str, float]:
    """The probability of each answer that was given; what is missing to 1 is that of one nobody gave.

    Every candidate, and the one nobody gave, is as probable as the others at first. A sample with answer a
    and confidence c has the likelihood c under the candidate a, and 1 - c shared by all others under each of
    these. Votes without a confidence, and open ones, say nothing. The sums are exactly rounded, so that the
    order of the votes does not matter.

    Source: Aghazadeh et al., "CGES: Confidence-Guided Early Stopping for Efficient and Accurate
    Self-Consistency", 2025 (arXiv 2511.02603). The candidate that nobody gave is an addition here: without
    it a single answer would be certain.
    """
    groups = ballot.groups()
    if not groups:
        return {}
    others = math.log(len(groups))  # the candidates are the groups and the unseen one, less the right one
    logs = {
        g.key: math.fsum(
            part
            for vote in g.votes.values()
            if vote.confidence is not None and not vote.open
            for part in _log_odds(vote.confidence, others)
        )
        for g in groups
    }
    top = max(0.0, *logs.values())
    unseen = math.exp(-top)
    weights = {key: math.exp(value - top) for key, value in logs.items()}
    total = math.fsum((unseen, *weights.values()))
    return {key: weight / total for key, weight in weights.items()}


def _log_odds(confidence: float, others: float) -> tuple[float, float, float]:
    """Log-likelihood under the own candidate, less that under another one, as the parts of a sum."""
    c = min(max(confidence, EDGE), 1.0 - EDGE)
    return math.log(c), -math.log1p(-c), others


@dataclass(frozen=True, slots=True)
class ConfidenceStop:
    """Stop when the posterior of the answer that leads the vote reaches `threshold`.

    Known limit: as good as the confidences are calibrated; too high ones stop too early.

    Raises:
        ValueError: the threshold is not in 0.5..1 or `min_votes` is below 1.
    """

    threshold: float = 0.95
    min_votes: int = 1

    def __post_init__(self) -> None:
        require_float("threshold", self.threshold, 0.5, 1.0)
        require_int("min_votes", self.min_votes, 1, MAX_SAMPLES)

    def stops(self, ballot: Ballot, remaining: int) -> bool:
        standing = ballot.standing()
        if standing is None or len(ballot) - ballot.open < self.min_votes:
            return False
        return posterior(ballot)[standing.key] >= self.threshold
