"""Step beam search: of the continuations of each depth, only the most promising are gone on from.

Algorithm: `width` * `expand` first steps are drawn and scored. At every depth the best `width` steps are
promoted: each gets `expand` continuations. There is no barrier: of the r steps of a depth that have come
back, the best r / `expand` may go on at once, without waiting for the rest (asynchronous successive halving);
once all have come, the best `width`. A complete answer that ranks among the best takes one of the `width`
places of its depth and stays in the final choice. The same step drawn twice from one parent counts once, and
its parent draws no other for it.

Sources: Yao et al., "Tree of Thoughts", NeurIPS 2023 (arXiv 2305.10601), and Snell et al., 2024 (arXiv
2408.03314), section 5, for the beam over a process reward model; Li et al., "A System for Massively Parallel
Hyperparameter Tuning", MLSys 2020 (arXiv 1810.05934), algorithm 2, for the promotion without a barrier.

Known limits: a step that ranks low by a mistake of the verifier is lost. Beams tend to come from few first
steps; `dvts` keeps them apart. An early promotion may take the place of a better step that comes late.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from search.contract import CallId
from search.ground import Ground
from search.params import MAX_SAMPLES, require_int, require_one_of
from search.reduction import REDUCTIONS, Reduction
from search.step import Step, StepState
from search.stepper import ROOT_STEP, Root
from search.stepwise import Aggregate, StepSearch


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Parameters of `Beam`.

    Args:
        width: steps of each depth that are gone on from.
        expand: continuations of each of them.
        max_depth: steps of a path at most.
        reduction: how the scores of a path's steps become one.
        aggregate: how the answer is chosen among the complete paths.
        max_retries: how many failed steps are drawn again.

    Raises:
        ValueError: a value is out of its range.
    """

    width: int = 4
    expand: int = 4
    max_depth: int = 64
    reduction: Reduction = "last"
    aggregate: Aggregate = "weighted"
    max_retries: int = 4

    def __post_init__(self) -> None:
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_int("expand", self.expand, 1, MAX_SAMPLES)
        require_int("max_depth", self.max_depth, 1, MAX_SAMPLES)
        require_one_of("reduction", self.reduction, REDUCTIONS)
        require_one_of("aggregate", self.aggregate, ("weighted", "max"))
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)


class Beam(StepSearch):
    """See the module's docstring."""

    def __init__(self, params: BeamParams, ground: Ground) -> None:
        super().__init__(ground, reduction=params.reduction, aggregate=params.aggregate)
        self._params = params
        self._back: dict[int, list[Step]] = defaultdict(list)  # per depth, those that have ended
        self._promoted: dict[int, list[Step]] = defaultdict(list)

    def _grow(self) -> Step | Root | None:
        for depth in sorted(self._promoted, reverse=True):
            for step in self._promoted[depth]:
                if self._wants_more(step.children, self._params.expand):
                    return step
        if self._wants_more(self._stepper.roots, self._params.width * self._params.expand):
            return ROOT_STEP
        return None

    def _wants_more(self, children: list[Step], wanted: int) -> bool:
        failed = sum(c.state is StepState.FAILED for c in children)
        spare = max(0, self._params.max_retries - self._stepper.failed + failed)
        return len(children) - min(failed, spare) < wanted

    def _take(self, step: Step) -> list[CallId]:
        if step not in self._back[step.depth]:
            self._back[step.depth].append(step)
        for depth in sorted(self._back):
            self._promote(depth)
        return []

    def _promote(self, depth: int) -> None:
        back, promoted = self._back[depth], self._promoted[depth]
        ranked = sorted((s for s in back if self._stands(s)), key=lambda s: (-self.value(s), s.index))
        room = self._params.width if self._is_over(depth) else len(back) // self._params.expand
        for step in ranked[: min(room, self._params.width)]:
            places = len(promoted) + sum(s.state is StepState.COMPLETE for s in ranked[: self._params.width])
            fits = places < self._params.width and depth + 1 < self._params.max_depth
            if step.state is StepState.OPEN and step not in promoted and fits:
                promoted.append(step)

    def _stands(self, step: Step) -> bool:
        return step.state in (StepState.OPEN, StepState.COMPLETE)

    def _is_over(self, depth: int) -> bool:
        """Whether no further step of this depth will come back."""
        if depth > 0 and not self._is_over(depth - 1):
            return False
        parents = self._promoted[depth - 1] if depth else []
        children = [c for p in parents for c in p.children] if depth else self._stepper.roots
        wanted = self._params.expand if depth else self._params.width * self._params.expand
        groups = [p.children for p in parents] if depth else [self._stepper.roots]
        return all(c.ended for c in children) and not any(self._wants_more(g, wanted) for g in groups)
