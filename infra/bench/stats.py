"""Paired comparison of two sides on the same problems, and the interval of one side's accuracy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Paired:
    """Accuracy of one side minus that of the other.

    Args:
        difference: as a fraction; positive where the first side is better.
        low, high: its 95 % interval, by percentile bootstrap over problems.
        won, lost: problems that the first, or the second, got right (more often).
        p: two-sided p-value of McNemar's exact test; of shares, of the sign test, which is the same one.
        problems: that both had.
    """

    difference: float
    low: float
    high: float
    won: int
    lost: int
    p: float
    problems: int


def compare(ours: Sequence[float], theirs: Sequence[float], seed: int) -> Paired:
    """Compare two sides on the same problems, in the same order.

    Args:
        ours, theirs: of each problem, whether it was right, or the share of its runs that were.
        seed: of the bootstrap.

    Raises:
        ValueError: the lists are empty or not of one length.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} verdicts cannot be paired")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    won, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    low, high = _bootstrap(differences, seed)
    mean = sum(differences) / len(differences)
    return Paired(mean, low, high, won, lost, mcnemar(won, lost), len(differences))


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p-value: the discordant pairs under a fair coin. McNemar (1947), exact form."""
    discordant = won + lost
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, k) for k in range(min(won, lost) + 1))
    return float(min(1.0, 2 * tail / 2**discordant))


def _bootstrap(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """2.5th and 97.5th percentile of the mean difference over resampled problems."""
    draw = random.Random(seed)
    # In an order of their own, so that the interval does not depend on that of the problems.
    values, problems = sorted(differences, key=lambda d: (-abs(d), -d)), len(differences)
    means = sorted(sum(draw.choices(values, k=problems)) / problems for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def wilson(right: int, total: int) -> tuple[float, float]:
    """95 % score interval of a share. Wilson (1927)."""
    if total == 0:
        return 0.0, 1.0
    share, z = right / total, Z95
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)
