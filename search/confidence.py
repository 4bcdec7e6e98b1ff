"""How sure a model was of what it wrote, from the log-probabilities of its tokens, one token after another.

Source: Fu et al., "Deep Think with Confidence", 2025 (arXiv 2508.15260), section 3, for token confidence
(minus the mean log-probability of the likeliest tokens) and for the group, lowest, tail and bottom-percent
confidence of a trace.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from search.contract import Chunk

MOST_GROUPS = 4096
"""Group confidences that are kept of one trace; of a longer one only every 2nd, 4th, ... is."""
_MOST = 1000.0
"""A token's confidence is not counted for more: an engine may give -inf for a token that cannot be."""


def token_confidences(chunk: Chunk) -> Iterator[float]:
    """The confidence of each token of a chunk, >= 0, greater where the model was surer.

    Minus the mean log-probability of the likeliest tokens where the chunk has that (a peaked distribution
    leaves little to all but the first of them). Else the probability of the token itself. Nothing where the
    chunk has no log-probabilities.
    """
    if chunk.top_means:
        return (min(max(0.0, -mean), _MOST) for mean in chunk.top_means)
    return (math.exp(min(0.0, value)) for value in chunk.logprobs)


class MeanLogprob:
    """The mean log-probability of the tokens of one sample."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, logprobs: tuple[float, ...]) -> None:
        for value in logprobs:
            self._sum += value
            self._count += 1

    @property
    def probability(self) -> float | None:
        """exp of the mean, in 0..1; None before the first token, or when that is not a number."""
        if not self._count or math.isnan(self._sum):
            return None
        return math.exp(min(0.0, self._sum / self._count))


class TraceConfidence:
    """The confidence of one trace, taken in token by token in constant time each and in bounded memory.

    A group is `window` tokens in a row, one ending at each token from the `window`-th on; its confidence is
    their mean. A trace shorter than that is one group.
    """

    __slots__ = ("_groups", "_last", "_lowest", "_seen", "_stride", "_sum", "_total", "count")

    def __init__(self, window: int) -> None:
        self._last: deque[float] = deque(maxlen=window)
        self._sum = 0.0
        self._total = 0.0
        self._lowest = math.inf
        self._groups: list[float] = []
        self._stride = 1
        self._seen = 0
        self.count = 0

    def add(self, confidence: float) -> None:
        """Take in one token's confidence."""
        if len(self._last) == self._last.maxlen:
            self._sum -= self._last[0]
        self._last.append(confidence)
        self._sum += confidence
        self._total += confidence
        self.count += 1
        group = self.group
        if group is not None:
            self._lowest = min(self._lowest, group)
            self._keep(group)

    @property
    def group(self) -> float | None:
        """Confidence of the group that ends with the last token; None while the first is not full."""
        full = len(self._last) == self._last.maxlen
        return self._sum / len(self._last) if full else None

    @property
    def mean(self) -> float:
        """Over all tokens; 0 when there is none."""
        return self._total / self.count if self.count else 0.0

    @property
    def lowest(self) -> float:
        """The least confident group's."""
        return self.mean if self._lowest == math.inf else self._lowest

    @property
    def tail(self) -> float:
        """Of the last `window` tokens."""
        return self._sum / len(self._last) if self._last else 0.0

    def bottom(self, percent: float) -> float:
        """Mean over the least confident `percent` of the groups, at least one of them."""
        if not self._groups:
            return self.mean
        least = sorted(self._groups)[: max(1, math.floor(len(self._groups) * percent / 100))]
        return math.fsum(least) / len(least)

    def _keep(self, group: float) -> None:
        if self._seen % self._stride == 0:
            self._groups.append(group)
        self._seen += 1
        if len(self._groups) > MOST_GROUPS:
            del self._groups[1::2]
            self._stride *= 2


def percentile(values: list[float], percent: float) -> float:
    """The value below which `percent` (0..100) of the values lie, interpolated between neighbours.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ranked = sorted(values)
    at = (len(ranked) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (at - low)
