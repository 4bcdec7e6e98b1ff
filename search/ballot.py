"""Counting votes by answer key."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote.

    Args:
        weight: exact.
        confidence: how sure (0..1) this sample is of its answer; None where nothing is known of that.
        open: its weight and confidence are provisional, and may still be set.
    """

    weight: Fraction
    confidence: float | None = None
    open: bool = False


@dataclass(slots=True)
class Group:
    """The votes for one answer key.

    Args:
        key: the answer's normal form.
        weight: the exact sum of the votes' weights.
        votes: by the number of the sample, in order of arrival.
        first: the lowest number among them.
    """

    key: str
    weight: Fraction = Fraction(0)
    votes: dict[int, Vote] = field(default_factory=dict)
    first: int = 0

    @property
    def open(self) -> list[Vote]:
        """The votes whose weight is provisional."""
        return [vote for vote in self.votes.values() if vote.open]


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

    @property
    def open(self) -> int:
        """Votes whose weight is provisional."""
        return sum(len(group.open) for group in self._groups.values())

    def add(
        self,
        key: str,
        sample: int,
        weight: float = 1.0,
        confidence: float | None = None,
        *,
        open: bool = False,
    ) -> None:
        """Count one vote, or set an open one anew. Each sample has one vote.

        Raises:
            ValueError: the key is empty, the weight is negative or not finite, or the confidence is not
                in 0..1.
        """
        if not key:
            raise ValueError("an empty answer cannot be voted for")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"weight must be finite and >= 0, not {weight}")
        if confidence is not None and not 0 <= confidence <= 1:
            raise ValueError(f"confidence must be in 0..1, not {confidence}")
        group = self._groups.setdefault(key, Group(key, first=sample))
        vote = Vote(Fraction(weight), confidence, open)
        before = group.votes.get(sample)
        change = vote.weight - (before.weight if before else 0)
        group.votes[sample] = vote
        group.weight += change
        group.first = min(group.first, sample)
        self._votes += before is None
        self._weight += change

    def copy(self) -> Ballot:
        """A ballot of its own with the same votes."""
        other = Ballot()
        other._votes, other._weight = self._votes, self._weight
        other._groups = {k: Group(k, g.weight, dict(g.votes), g.first) for k, g in self._groups.items()}
        return other

    def merge(self, key: str, into: str) -> None:
        """All votes for one answer count for another, since both are the same. Unknown keys are ignored."""
        group = self._groups.pop(key, None)
        if group is None:
            return
        target = self._groups.setdefault(into, Group(into, first=group.first))
        target.weight += group.weight
        target.votes |= group.votes
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
        share = leader.weight / self._weight if self._weight else Fraction(len(leader.votes), self._votes)
        tie = len(groups) > 1 and groups[1].weight == leader.weight
        return Standing(leader.key, float(leader.weight), float(share), tuple(sorted(leader.votes)), tie)
