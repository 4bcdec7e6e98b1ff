"""Who runs when: rounds over the sides whose order turns about, so that drift of the machine hits all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.bench.peers.sides import Side, Size
from infra.bench.problems import Problem


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's share of one block: these problems, so many at once."""

    side: Side
    concurrency: int
    block: int
    problems: tuple[Problem, ...]


def per_level(sizes: Mapping[int, Size], levels: int) -> int:
    """Problems of each level that these sizes need."""
    return max(-(-size.blocks * size.core // levels) for size in sizes.values())


def turns(sides: Sequence[Side], problems: Sequence[Problem], sizes: Mapping[int, Size]) -> Iterator[Turn]:
    """All turns in order: by concurrency, then by block; every other block has the sides in reverse. Sides
    that are not core have their turn in the first block alone.

    Raises:
        ValueError: a size asks for more problems than there are.
    """
    for concurrency, size in sizes.items():
        if size.blocks * size.core > len(problems):
            raise ValueError(f"{size.blocks} blocks of {size.core} need more than {len(problems)} problems")
        for block in range(size.blocks):
            here = tuple(problems[block * size.core : (block + 1) * size.core])
            for side in sides if block % 2 == 0 else reversed(sides):
                if side.core:
                    yield Turn(side, concurrency, block, here)
                elif block == 0:
                    yield Turn(side, concurrency, block, here[: size.other])
