"""A world whose engine gives log-probabilities where they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from search.contract import Call, Chunk, Event, Generate, Search
from tests.search.drive import World


def by_token(script: int, at: int) -> float:
    """A probability that differs from token to token and from script to script."""
    return 0.05 + 0.9 * ((at * 7 + script * 3) % 10) / 10


@dataclass
class ConfidentWorld(World):
    """Every token has a probability.

    Args:
        sure: the probability of a token, by the number of its script and its place in it.
        tops: whether the mean of the likeliest tokens comes too, where it is asked for.
    """

    sure: Callable[[int, int], float] = by_token
    tops: bool = True

    def event_of(self, search: Search, call: Call) -> Event:
        event = super().event_of(search, call)
        if not isinstance(event, Chunk) or not isinstance(call, Generate) or not call.logprobs:
            return event
        places = [divmod(token - 100, 1000) for token in event.token_ids]
        probabilities = [self.sure(script, at) for script, at in places]
        # A surer token leaves less to the others: the mean over the likeliest ones is lower.
        means = tuple(-5.0 * p for p in probabilities) if call.logprobs > 1 and self.tops else ()
        return replace(event, logprobs=tuple(map(math.log, probabilities)), top_means=means)
