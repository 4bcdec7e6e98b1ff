"""A vote ends when one window of samples agrees."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from search.ballot import Ballot
from search.params import MAX_SAMPLES, require_int


@dataclass(frozen=True, slots=True)
class WindowStop:
    """Stop when all samples of one window gave the answer that leads the vote.

    Windows are made by the samples' numbers, not by their order of arrival: of `window` = 4 the first one is
    samples 0 to 3. So samples that end early, because they are short, make no window of their own. A sample
    that failed, was cut short or gave no answer agrees with nobody, and its window does not end the vote.

    Source: Li et al., "Escape Sky-high Cost: Early-stopping Self-Consistency for Multi-step Reasoning", ICLR
    2024 (arXiv 2401.10480), section 3. There the window's answer need not lead the vote.

    Raises:
        ValueError: `window` is out of its range.
    """

    window: int = 4

    def __post_init__(self) -> None:
        require_int("window", self.window, 2, MAX_SAMPLES)

    def stops(self, ballot: Ballot, remaining: int) -> bool:
        groups = ballot.groups()
        if not groups:
            return False
        agreed = Counter(number // self.window for number in groups[0].votes)
        return max(agreed.values()) == self.window
