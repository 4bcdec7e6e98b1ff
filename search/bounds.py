"""How many tokens a search may be charged for at most: what a plan's cap starts from.

An upper bound for searches over whole samples; for trees of steps an upper bound as far as the steps of one
depth are about equally long. A search that is given less just has less room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search.contract import Costs
from search.ground import NO_PHRASES, Phrase
from search.sample import SampleLimits

_COUNTS = ("n", "particles")
_WIDTHS = ("width", "subtrees", "expand")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the tokens of a search depend on beside its params.

    Args:
        prompt_tokens: of the prompt.
        phrases: what it may write itself, by name.
    """

    limits: SampleLimits
    costs: Costs
    prompt_tokens: int
    phrases: Mapping[str, Phrase] = field(default_factory=lambda: NO_PHRASES)

    @property
    def sample_tokens(self) -> int:
        """The most tokens of one path after the prompt."""
        return max(0, min(self.limits.max_new_tokens, self.limits.context_tokens - self.prompt_tokens))


def most_samples(params: Any) -> int:
    """So many whole paths' worth of tokens are written at most.

    By `params.most_samples()` where there is one. Else the samples that `n` or a field like it tells, or for
    trees the product of their widths, and all retries, since a failed sample's tokens are charged too.
    """
    own = getattr(params, "most_samples", None)
    if own is not None:
        return int(own())
    counts = [int(getattr(params, name)) for name in _COUNTS if hasattr(params, name)]
    count = counts[0] if counts else 1
    if not counts:
        for name in _WIDTHS:
            count *= int(getattr(params, name, 1))
    return count + int(getattr(params, "max_retries", 0))


def most_compares(params: Any) -> int:
    """So many comparisons at most: `params.most_compares()`, else each sample with each other."""
    own = getattr(params, "most_compares", None)
    if own is not None:
        return int(own())
    count = most_samples(params)
    return count * (count - 1) // 2


def most_tokens(params: Any, needs: frozenset[str], bounds: Bounds) -> int:
    """Charged tokens beyond the prompt, for params that name no inner techniques.

    Every sample is written to its end and verified; a path of steps is scored at each of them.

    Args:
        needs: what is asked for beside generations.
    """
    samples, costs = most_samples(params), bounds.costs
    depth = getattr(params, "max_depth", None)
    steps = 1 if depth is None else max(1, min(int(depth), bounds.sample_tokens))
    total = samples * (bounds.sample_tokens + _taken_back(params, bounds))
    if "score" in needs:
        total += samples * steps * costs.score_tokens
    if "check" in needs:
        total += samples * costs.check_tokens
    if "compare" in needs:
        total += most_compares(params) * costs.compare_tokens
    return total


def _taken_back(params: Any, bounds: Bounds) -> int:
    """Tokens of closing marks of thinking that a sample may take back; they were generated all the same."""
    markers = bounds.limits.thinking
    return 0 if markers is None else int(getattr(params, "think_again", 0)) * len(markers.close)
