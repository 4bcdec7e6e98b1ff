"""Whether a set of samples calls tools or answers: decided before the votes are counted."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, TypeAlias

from search.stopping import lead_probability

ToolVoting: TypeAlias = Literal["majority", "refuse"]
TOOL_VOTING: tuple[ToolVoting, ...] = ("majority", "refuse")


class ToolVote:
    """Counts complete samples with text that call tools, and the others.

    Tools are called only by a true majority: when more than half of all samples with text call some. Which
    ones is then voted on among these alone; else the answers are voted on, and calls have no vote.

    Args:
        how: `refuse`: calls of tools never win.
    """

    def __init__(self, how: ToolVoting) -> None:
        self._refused = how == "refuse"
        self.texts = 0
        self.tools = 0

    def take(self, *, calls_tools: bool) -> None:
        """Count one sample."""
        self.texts += 1
        self.tools += calls_tools

    @property
    def calls(self) -> bool:
        """Whether calls of tools are voted on, as things stand."""
        return not self._refused and 2 * self.tools > self.texts

    @property
    def only_refused(self) -> bool:
        """Whether there is nothing but calls of tools, which are refused."""
        return self._refused and 0 < self.tools == self.texts

    def decided(self, remaining: int) -> bool:
        """Whether no samples that may still come can change it."""
        if self._refused or not remaining:
            return True
        if self.calls:
            return 2 * self.tools > self.texts + remaining
        return 2 * (self.tools + remaining) <= self.texts + remaining

    def clear(self, threshold: float) -> bool:
        """Whether one kind is more probable than the other by the Beta criterion, or the only one seen."""
        most, least = sorted((self.tools, self.texts - self.tools), reverse=True)
        return self._refused or not least or lead_probability(most, least) >= Fraction(threshold)
