"""Rules that end a vote before all samples have come."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Protocol

from search.ballot import Ballot


class StoppingRule(Protocol):
    """Whether a vote may end now.

    `remaining` is how many samples may still vote: those running, those waiting for room and those that
    are not yet started.
    """

    def stops(self, ballot: Ballot, remaining: int) -> bool: ...


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
    first, second, *_ = [*sorted((len(g.samples) for g in ballot.groups()), reverse=True), 0, 0]
    return first, second


@dataclass(frozen=True, slots=True)
class BetaStop:
    """Stop when the leader is more probable than the runner-up with at least `threshold`.

    Only votes that have come count; samples in flight say nothing yet. Known limit: short samples end
    first, so that an early stop favours answers that are reached in few tokens.

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
        return len(ballot) >= self.min_votes and lead_probability(*counts(ballot)) >= Fraction(self.threshold)


@dataclass(frozen=True, slots=True)
class DecidedStop:
    """Stop when no votes of the remaining samples can change the winner, or make its win a tie.

    Exact: costs no accuracy.

    Args:
        max_weight: the most that one vote can weigh.
    """

    max_weight: float = 1.0

    def stops(self, ballot: Ballot, remaining: int) -> bool:
        if remaining == 0:
            return True
        leader, runner_up, *_ = [*(g.weight for g in ballot.groups()), Fraction(0), Fraction(0)]
        # The runner-up may also be an answer that nobody has given yet: then it starts from 0.
        return leader > runner_up + remaining * Fraction(self.max_weight)
