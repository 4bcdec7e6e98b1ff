"""Counting votes by answer key."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(slots=True)
class Group:
    """The votes for one answer key.

    Args:
        key: the answer's normal form.
        weight: the exact sum of the votes' weights.
        samples: the samples that voted for it, in order of arrival.
        first: the lowest number among them.
    """

    key: str
    weight: Fraction = Fraction(0)
    samples: list[int] = field(default_factory=list)
    first: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How a vote stands.

    Args:
        key: the answer that leads.
        weight: its weight.
        share: its share (0..1) of the whole weight; of the number of votes when all weights are 0.
        samples: those that voted for it, lowest number first.
        tie: another answer has the same weight, and this one leads by the lowest sample number alone.
    """

    key: str
    weight: float
    share: float
    samples: tuple[int, ...]
    tie: bool


class Ballot:
    """A vote that grows. Its outcome does not depend on the order of the votes.

    The most weight wins, and of equal weights the group with the lowest sample number. Weights are summed
    exactly, so that the order of arrival cannot change a rounding.
    """

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._votes = 0
        self._weight = Fraction(0)

    def __len__(self) -> int:
        """The number of votes."""
        return self._votes

    def add(self, key: str, sample: int, weight: float = 1.0) -> None:
        """Count one vote.

        Raises:
            ValueError: the key is empty, or the weight is negative or not finite.
        """
        if not key:
            raise ValueError("an empty answer cannot be voted for")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"weight must be finite and >= 0, not {weight}")
        group = self._groups.setdefault(key, Group(key, first=sample))
        group.weight += Fraction(weight)
        group.samples.append(sample)
        group.first = min(group.first, sample)
        self._votes += 1
        self._weight += Fraction(weight)

    def merge(self, key: str, into: str) -> None:
        """All votes for one answer count for another, since both are the same. Unknown keys are ignored."""
        group = self._groups.pop(key, None)
        if group is None:
            return
        target = self._groups.setdefault(into, Group(into, first=group.first))
        target.weight += group.weight
        target.samples += group.samples
        target.first = min(target.first, group.first)

    def groups(self) -> list[Group]:
        """All groups, the leading one first."""
        return sorted(self._groups.values(), key=lambda g: (-g.weight, g.first))

    def standing(self) -> Standing | None:
        """How the vote stands; None before the first vote."""
        if not self._groups:
            return None
        groups = self.groups()
        leader = groups[0]
        share = leader.weight / self._weight if self._weight else Fraction(len(leader.samples), self._votes)
        tie = len(groups) > 1 and groups[1].weight == leader.weight
        return Standing(leader.key, float(leader.weight), float(share), tuple(sorted(leader.samples)), tie)
