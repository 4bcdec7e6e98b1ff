"""What the token ledger answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from guards.budget import Window


@dataclass(frozen=True, slots=True)
class Granted:
    """Tokens are set aside until the lease ends or the search is settled.

    Args:
        search_id: the search that holds them.
        tokens: how many; of the first grant when the reservation was repeated.
        remaining: what is still free in each window after this grant, >= 0; None where there is no limit.
    """

    search_id: str
    tokens: int
    remaining: Mapping[Window, int | None]


@dataclass(frozen=True, slots=True)
class Denied:
    """Nothing was set aside.

    Args:
        window: what blocks: the window one has to wait for longest, or `in_flight` (too many holds).
        limit: its limit, in tokens; for `in_flight` in holds.
        used: tokens charged in this window; for `in_flight` 0.
        reserved: tokens set aside by running searches; for `in_flight` the number of holds.
        retry_after_s: seconds after which it may pass, >= 1; an upper bound, since a search that settles
            frees tokens at once. None when waiting cannot help (`suspended`, `never`).
        suspended: the limit is 0.
        never: the request is larger than the whole limit.
    """

    window: Window | Literal["in_flight"]
    limit: int
    used: int
    reserved: int
    retry_after_s: int | None
    suspended: bool = False
    never: bool = False


Decision: TypeAlias = Granted | Denied


@dataclass(frozen=True, slots=True)
class Settled:
    """What a search was charged in the end.

    Args:
        charged: tokens, in total and not by this call.
        already: the search had been settled before; this call changed nothing.
        over_reservation: more was used than reserved (or nothing was), and was charged all the same.
    """

    charged: int
    already: bool
    over_reservation: bool


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """The state of one window: tokens used and reserved, the limit, and seconds until it starts anew."""

    used: int
    reserved: int
    limit: int | None
    reset_s: int


class SearchSettled(Exception):
    """The search was settled, or its lease ran out; its id cannot reserve again."""
