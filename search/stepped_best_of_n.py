"""Best-of-N whose samples are drawn and scored step by step: see `search.best_of_n`.

A sample is a chain: a first step, and one child after each step. So every step has its score, and these are
reduced to the sample's.
"""

from __future__ import annotations

from search.best_of_n import BestOfNParams
from search.contract import CallId
from search.ground import Ground
from search.step import ROOT_STEP, Step, StepState
from search.stepwise import StepParams, StepSearch


class SteppedBestOfN(StepSearch):
    """`n` chains of steps, `width` at a time. A chain whose end is lost is drawn again from the step before.

    Chains of the same tokens both stand, as samples of the same tokens do.
    """

    def __init__(self, params: BestOfNParams, ground: Ground) -> None:
        steps = StepParams(
            max_depth=params.max_depth,
            reduction=params.reduction,
            aggregate=params.aggregate,
            max_retries=params.max_retries,
        )
        super().__init__(ground, steps, merge_twins=False)
        first = min(params.n, params.width)
        self._not_begun = params.n - first
        self._over: set[int] = set()
        self._demand.want(ROOT_STEP, first)

    def _take(self, step: Step) -> list[CallId]:
        if step.index in self._over or self._retry(step):
            return []
        self._over.add(step.index)
        if step.state is StepState.OPEN:
            self._demand.want(step)
        elif self._not_begun:
            self._not_begun -= 1
            self._demand.want(ROOT_STEP)
        return []
