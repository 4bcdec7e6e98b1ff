"""Rules that end a vote before all samples have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Protocol

from search.ballot import Ballot, Group


class StoppingRule(Protocol):
    """Whether a vote may end now.

    `remaining` is how many samples may still vote: those running, those waiting for room and those that
    are not yet started. Votes that are open count as they stand, except where a rule says more of them.
    """

    def stops(self, ballot: Ballot, remaining: int) -> bool: ...


def least_votes(rules: Sequence[StoppingRule], ballot: Ballot, coming: Sequence[int], remaining: int) -> int:
    """After how many further votes one of the rules would stop the vote if the next samples all voted for the
    leader, with the weight and confidence that its votes have on average.

    Args:
        coming: numbers of the samples that vote next.
        remaining: as for the rules.

    Returns:
        1 or more; `len(coming)` where that many are not enough.
    """
    trial = ballot.copy()
    leader = next(iter(ballot.groups()), Group("any"))
    known = [v for v in leader.votes.values() if not v.open]
    sure = [v.confidence for v in known if v.confidence is not None]
    confidence = sum(sure) / len(sure) if sure else 1.0
    weight = sum(float(v.weight) for v in known) / len(known) if known else 1.0
    for votes, number in enumerate(coming, start=1):
        trial.add(leader.key, number, weight, min(1.0, confidence))
        if any(rule.stops(trial, max(0, remaining - votes)) for rule in rules):
            return votes
    return max(1, len(coming))


def lead_probability(leader: int, runner_up: int) -> Fraction:
    """Probability that the leading answer is more probable than the second one, given their vote counts.

    Under a uniform prior on the share of the two this is P(X > 1/2) for X ~ Beta(leader + 1,
    runner_up + 1); for whole numbers it is the binomial tail P(B(leader + runner_up + 1, 1/2) <= leader),
    computed exactly.

    Source: Aggarwal et al., "Let's Sample Step by Step: Adaptive-Consistency for Efficient Reasoning and
    Coding with LLMs", EMNLP 2023, section 3 (the Beta criterion).
    """
    n = leader + runner_up + 1
    return Fraction(sum(comb(n, i) for i in range(leader + 1)), 1 << n)


def counts(ballot: Ballot) -> tuple[int, int]:
    """Votes of the leading answer and of the strongest other one, by number."""
    first, second, *_ = [*sorted((len(g.votes) for g in ballot.groups()), reverse=True), 0, 0]
    return first, second


@dataclass(frozen=True, slots=True)
class BetaStop:
    """Stop when the leader is more probable than the runner-up with at least `threshold`.

    The leader is that of the vote; the runner-up has the most votes of the others, by number. Only votes
    that have come count; samples in flight say nothing yet. Known limit: short samples end first, so that an
    early stop favours answers that are reached in few tokens.

    Raises:
        ValueError: the threshold is not in 0.5..1 or `min_votes` is below 1.
    """

    threshold: float = 0.95
    min_votes: int = 2

    def __post_init__(self) -> None:
        if not 0.5 <= self.threshold <= 1:
            raise ValueError(f"threshold must be 0.5..1, not {self.threshold}")
        if self.min_votes < 1:
            raise ValueError(f"min_votes must be >= 1, not {self.min_votes}")

    def stops(self, ballot: Ballot, remaining: int) -> bool:
        groups = ballot.groups()
        if len(ballot) < self.min_votes or not groups:
            return False
        leader = len(groups[0].votes)
        second = max((len(g.votes) for g in groups[1:]), default=0)
        return lead_probability(leader, second) >= Fraction(self.threshold)


@dataclass(frozen=True, slots=True)
class DecidedStop:
    """Stop when no votes of the remaining samples can change the winner, or make its win a tie.

    Exact: costs no accuracy. An open vote may come to weigh nothing, or as much as any vote may.

    Args:
        max_weight: the most that one vote can weigh.
    """

    max_weight: float = 1.0

    def stops(self, ballot: Ballot, remaining: int) -> bool:
        most = Fraction(self.max_weight)
        groups = ballot.groups()
        if remaining == 0 and not ballot.open:
            return True
        if not groups:
            return False
        leader, *others = groups
        sure = leader.weight - sum(v.weight for v in leader.open)
        # The runner-up may also be an answer that nobody has given yet: then it starts from 0.
        reach = max((g.weight + sum(most - v.weight for v in g.open) for g in others), default=Fraction(0))
        return sure > reach + remaining * most
