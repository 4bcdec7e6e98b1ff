"""A knockout among a few entrants: who meets whom, as far as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
"""Two seeds, the better (smaller) one first."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the winners of two parts of a bracket meet."""

    left: Bracket
    right: Bracket


Bracket: TypeAlias = int | Meeting
"""One seed, or a meeting."""


def make_bracket(seeds: Sequence[int]) -> Bracket:
    """A bracket in which good seeds meet late, and have the byes; `seeds` must rise, and not be empty."""
    if len(seeds) == 1:
        return seeds[0]
    left, right = split(seeds, 2)
    return Meeting(make_bracket(left), make_bracket(right))


def split(seeds: Sequence[int], groups: int) -> list[list[int]]:
    """Deal seeds out back and forth, so that the groups are equally strong; none is empty."""
    dealt: list[list[int]] = [[] for _ in range(groups)]
    for at, seed in enumerate(seeds):
        turn, place = divmod(at, groups)
        dealt[groups - 1 - place if turn % 2 else place].append(seed)
    return dealt


def winner(bracket: Bracket, result: Callable[[Pair], int | None]) -> int | None:
    """The seed that came through, None while that is open. `result`: who won a pair, None while open."""
    if isinstance(bracket, int):
        return bracket
    left, right = winner(bracket.left, result), winner(bracket.right, result)
    if left is None or right is None:
        return None
    return result((min(left, right), max(left, right)))


def known_pairs(bracket: Bracket, result: Callable[[Pair], int | None]) -> Iterator[Pair]:
    """The pairs that are known by now, played ones included, from the leaves up."""
    if isinstance(bracket, int):
        return
    yield from known_pairs(bracket.left, result)
    yield from known_pairs(bracket.right, result)
    left, right = winner(bracket.left, result), winner(bracket.right, result)
    if left is not None and right is not None:
        yield (min(left, right), max(left, right))
