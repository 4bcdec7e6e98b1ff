"""Reward-balanced search (REBASE): a budget of paths is shared over the open steps by their scores.

Algorithm: `n` first steps are drawn and scored. At each depth the budget is `n` less the paths that have
ended (complete or truncated) so far; every open step gets a share of it in proportion to
exp(score / `temperature`), as that many continuations. There is no barrier: a step gets the whole part of its
share at once, computed against the steps that are back and with those still out taken for average ones, and
never more in all than steps are back; the rest is shared out when all of the depth are back, to whom most is
lacking. A failed step that is not drawn again leaves its place to the others.

The same step drawn twice stays two paths (they share one score). How often a step is drawn is part of its
weight in the sharing and of its answer's weight in the final vote; merging would lose both.

Source: Wu et al., "Inference Scaling Laws: An Empirical Analysis of Compute-Optimal Inference for LLM
Problem-Solving", ICLR 2025 (arXiv 2408.00724); their implementation balances at 0.2. It waits for all steps
of a depth, and rounds each share up in order of score until the budget is used.

Known limits: a score that is wrong early takes most of the budget with it; a higher temperature spreads it.
An early share is a guess at the average of those still out, so the order of arrival can move a continuation
from one step to another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import exp

from search.contract import CallId
from search.ground import Ground
from search.params import MAX_SAMPLES, require_float, require_int
from search.step import ROOT_STEP, Step, StepState
from search.stepwise import StepParams, StepSearch


@dataclass(frozen=True, slots=True)
class RebaseParams(StepParams):
    """Parameters of `Rebase`, beside those of `StepParams`.

    Args:
        n: paths.
        temperature: how evenly they are shared; the lower, the more go to the best step.

    Raises:
        ValueError: a value is out of its range.
    """

    n: int = 16
    temperature: float = 0.2

    def __post_init__(self) -> None:
        StepParams.__post_init__(self)
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_float("temperature", self.temperature, 0.01, 100.0)


@dataclass(slots=True)
class _Depth:
    """The steps of one depth.

    Args:
        due: those that are wanted and have not come back.
        back: how many have come back.
        ended: paths that ended here.
        open: those that may be gone on from, with their weights.
        weight: the sum of these.
        granted: continuations by the number of the step.
        total: the sum of these.
    """

    due: int = 0
    back: int = 0
    ended: int = 0
    open: list[tuple[Step, float]] = field(default_factory=list)
    weight: float = 0.0
    granted: dict[int, int] = field(default_factory=dict)
    total: int = 0


class Rebase(StepSearch):
    """See the module's docstring."""

    def __init__(self, params: RebaseParams, ground: Ground) -> None:
        super().__init__(ground, params, merge_twins=False)
        self._n = params.n
        self._temperature = params.temperature
        self._depths = [_Depth(due=params.n)]
        self._over = 0  # depths of which no more steps will come
        self._demand.want(ROOT_STEP, params.n)

    def _take(self, step: Step) -> list[CallId]:
        if self._retry(step):
            return []
        depth = self._depths[step.depth]
        depth.due -= 1
        depth.back += 1
        if step.state is StepState.OPEN:
            weight = exp((self.value(step) - 1.0) / self._temperature)
            depth.open.append((step, weight))
            depth.weight += weight
            self._share_early(step, weight)
        elif step.state is not StepState.FAILED:
            depth.ended += 1
        cancels: list[CallId] = []
        while self._over < len(self._depths) and self._depths[self._over].due == 0:
            cancels += self._share_rest(self._over)
            self._over += 1
        return cancels

    def _paths(self, number: int) -> int:
        """Paths that are, or may still come to be, at this depth."""
        return self._n - sum(depth.ended for depth in self._depths[:number])

    def _share_early(self, step: Step, weight: float) -> None:
        depth = self._depths[step.depth]
        paths = self._paths(step.depth)
        out = max(0, paths - depth.back)
        whole = depth.weight + out * depth.weight / len(depth.open)
        share = (paths - depth.ended) * weight / whole
        self._grant(step, min(int(share), len(depth.open) - depth.total))

    def _share_rest(self, number: int) -> list[CallId]:
        """All of a depth are back: bring the shares up to what the budget is, and give up who has none."""
        depth = self._depths[number]
        budget = self._paths(number) - depth.ended
        lacking = [
            (depth.granted.get(step.index, 0) - budget * weight / depth.weight, step.index, step)
            for step, weight in depth.open
        ]
        heapify(lacking)
        for _ in range(budget - depth.total if lacking else 0):
            lack, index, step = lacking[0]
            self._grant(step, 1)
            heapreplace(lacking, (lack + 1, index, step))
        left = [step for step, _ in depth.open if step.index not in depth.granted]
        return self._stepper.prune(left, "its share of the budget is below one path")

    def _grant(self, step: Step, count: int) -> None:
        if count < 1:
            return
        depth = self._depths[step.depth]
        depth.granted[step.index] = depth.granted.get(step.index, 0) + count
        depth.total += count
        if step.depth + 1 == len(self._depths):
            self._depths.append(_Depth())
        self._depths[step.depth + 1].due += count
        self._demand.want(step, count)
