"""Dividing the tokens that are free over the samples that want to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MIN_SLICE = 32
"""Tokens below which a slice is not worth its own call."""


@dataclass(frozen=True, slots=True)
class Want:
    """What one sample could use.

    Args:
        rest: tokens until its own limit, at least 1.
        wake: KV tokens that its path takes up again before it grows; 0 when its KV is held.
        given: tokens that are written first in any case, charged and held like all others.
    """

    rest: int
    wake: int = 0
    given: int = 0


def divide(
    wants: Sequence[Want], tokens: int, kv_tokens: int, reserve: int, floor: int = MIN_SLICE
) -> list[int]:
    """Slices of tokens for the first wants, in a room that may be too small for all.

    When there is enough, everybody gets all the rest. Otherwise one half of the room is shared evenly, so
    that the search stays wide, and the other half goes by priority, so that the first ones reach their end
    instead of all being cut short together. Only so many are served that each gets `floor` tokens, or all
    its rest, from the even half; the first one may have them from the whole room.

    Args:
        wants: in order of priority.
        tokens: charged tokens that are free.
        kv_tokens: KV tokens that are free.
        reserve: charged tokens to keep back for each sample that runs.
        floor: the least slice.

    Returns:
        One slice per served want, a prefix of `wants`. Their sum, with what is given and the reserves,
        is at most `tokens`, and with what is given and the wakes at most `kv_tokens`.
    """
    rests = list(accumulate(w.rest for w in wants))
    least = list(accumulate(min(floor, w.rest) for w in wants))
    wakes = list(accumulate(w.wake for w in wants))
    given = list(accumulate(w.given for w in wants))
    for served in range(len(wants), 0, -1):
        room = min(tokens - served * reserve, kv_tokens - wakes[served - 1]) - given[served - 1]
        if rests[served - 1] <= room:
            return [w.rest for w in wants[:served]]
        even = room if served == 1 else room // 2
        if least[served - 1] <= even:
            return _fill(_level([w.rest for w in wants[:served]], even), wants, room)
    return []


def fit_whole(wants: Sequence[Want], tokens: int, kv_tokens: int, reserve: int) -> list[int]:
    """As `divide`, but each one served gets all its rest."""
    slices: list[int] = []
    for want in wants:
        tokens -= want.rest + want.given + reserve
        kv_tokens -= want.rest + want.given + want.wake
        if tokens < 0 or kv_tokens < 0:
            break
        slices.append(want.rest)
    return slices


def _level(rests: Sequence[int], room: int) -> list[int]:
    """Share evenly; what a short one does not need goes to the others."""
    slices = [0] * len(rests)
    # Shortest rest first, so that each one's share already contains what the shorter ones left over.
    for done, i in enumerate(sorted(range(len(rests)), key=lambda i: (rests[i], -i))):
        slices[i] = min(rests[i], room // (len(rests) - done))
        room -= slices[i]
    return slices


def _fill(slices: list[int], wants: Sequence[Want], room: int) -> list[int]:
    """Give what is left of the room to the first ones."""
    left = room - sum(slices)
    for i, slice_ in enumerate(slices):
        more = min(left, wants[i].rest - slice_)
        slices[i] += more
        left -= more
    return slices
