"""From the scores of a path's steps to one score."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, TypeAlias, get_args

Reduction: TypeAlias = Literal["last", "min", "product", "mean"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)


def reduce(reduction: Reduction, scores: Sequence[float]) -> float:
    """One score (0..1) for a path; 0 when none of its steps has one.

    Source: `min`, `last` and `product` as compared by Snell et al., "Scaling LLM Test-Time Compute Optimally
    can be More Effective than Scaling Model Parameters", 2024 (arXiv 2408.03314), appendix E; Lightman et
    al., "Let's Verify Step by Step", 2023 (arXiv 2305.20050), section 2.6, for `product` and `min`.
    """
    if not scores:
        return 0.0
    match reduction:
        case "last":
            return scores[-1]
        case "min":
            return min(scores)
        case "product":
            return prod(scores)
        case "mean":
            return sum(scores) / len(scores)
