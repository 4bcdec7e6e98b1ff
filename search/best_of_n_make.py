"""Which class makes a best-of-N search."""

from __future__ import annotations

from search.best_of_n import BestOfN, BestOfNParams
from search.contract import Search
from search.ground import Ground
from search.judged_best_of_n import JudgedBestOfN
from search.stepped_best_of_n import SteppedBestOfN


def make_best_of_n(params: BestOfNParams, ground: Ground) -> Search:
    """A best-of-N search by these parameters."""
    if params.by == "compare":
        return JudgedBestOfN(params, ground)
    if params.reduction != "last":
        return SteppedBestOfN(params, ground)
    return BestOfN(params, ground)
