"""Dividing the tokens that are free over the samples that want to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SLICE = 32
"""Tokens below which a slice is not worth its own call."""


@dataclass(frozen=True, slots=True)
class Want:
    """What one sample could use.

    Args:
        rest: tokens until its own limit, at least 1.
        wake: KV tokens that its path takes up again before it grows; 0 when its KV is held.
    """

    rest: int
    wake: int = 0


def divide(
    wants: Sequence[Want], tokens: int, kv_tokens: int, reserve: int, floor: int = MIN_SLICE
) -> list[int]:
    """Slices of tokens for as many of the first wants as can each have `floor` tokens or all their rest.

    When there is enough, everybody gets all the rest. Otherwise the room is shared evenly, and what a
    short one does not need goes to the others.

    Args:
        wants: in order of priority.
        tokens: charged tokens that are free.
        kv_tokens: KV tokens that are free.
        reserve: charged tokens to keep back for each sample that runs.
        floor: the least slice.

    Returns:
        One slice per served want, a prefix of `wants`. Their sum, with the reserves, is at most `tokens`,
        and with the wakes at most `kv_tokens`.
    """
    served, need, wake = 0, 0, 0
    for want in wants:
        least = need + min(floor, want.rest)
        if least + (served + 1) * reserve > tokens or least + wake + want.wake > kv_tokens:
            break
        served, need, wake = served + 1, least, wake + want.wake
    left = min(tokens - served * reserve, kv_tokens - wake)
    slices = [0] * served
    # Shortest rest first, so that each one's share already contains what the shorter ones left over.
    for done, i in enumerate(sorted(range(served), key=lambda i: (wants[i].rest, -i))):
        slices[i] = min(wants[i].rest, left // (served - done))
        left -= slices[i]
    return slices
