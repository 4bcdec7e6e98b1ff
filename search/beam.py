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

from bisect import insort
from dataclasses import dataclass, field

from search.contract import CallId
from search.ground import Ground
from search.params import MAX_SAMPLES, require_int
from search.step import ROOT_STEP, Step, StepState
from search.stepwise import StepParams, StepSearch


@dataclass(frozen=True, slots=True)
class BeamParams(StepParams):
    """Parameters of `Beam`, beside those of `StepParams`.

    Args:
        width: steps of each depth that are gone on from.
        expand: continuations of each of them.

    Raises:
        ValueError: a value is out of its range.
    """

    width: int = 4
    expand: int = 4

    def __post_init__(self) -> None:
        StepParams.__post_init__(self)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_int("expand", self.expand, 1, MAX_SAMPLES)


@dataclass(slots=True)
class _Depth:
    """The steps of one depth.

    Args:
        due: those that are wanted and have not come back.
        back: how many have come back.
        ranked: those that stand, the best one first, behind their sort key.
        promoted: numbers of those that are gone on from.
        over: no more will come.
    """

    due: int = 0
    back: int = 0
    ranked: list[tuple[float, int, Step]] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    over: bool = False


class Beam(StepSearch):
    """See the module's docstring."""

    def __init__(self, params: BeamParams, ground: Ground) -> None:
        super().__init__(ground, params)
        self._width = params.width
        self._expand = params.expand
        self._depths = [_Depth(due=params.width * params.expand)]
        self._over = 0
        self._demand.want(ROOT_STEP, params.width * params.expand)

    def _take(self, step: Step) -> list[CallId]:
        if self._retry(step):
            return []
        depth = self._depths[step.depth]
        depth.due -= 1
        depth.back += 1
        if step.state is StepState.OPEN or (step.state is StepState.COMPLETE and step.has_text):
            insort(depth.ranked, (-self.value(step), step.index, step))
        self._promote(step.depth)
        cancels: list[CallId] = []
        while self._over < len(self._depths) and self._depths[self._over].due == 0:
            cancels += self._end(self._over)
            self._over += 1
        return cancels

    def _promote(self, number: int) -> None:
        depth = self._depths[number]
        best = depth.ranked[: self._width]
        places = len(depth.promoted) + sum(s.state is StepState.COMPLETE for *_, s in best)
        # One place is left to the last one that is out, however good those before it are.
        room = self._width if depth.over else min(self._width, depth.back // self._expand)
        for *_, step in best[:room]:
            if places >= room:
                break
            if step.state is StepState.OPEN and step.index not in depth.promoted:
                depth.promoted.add(step.index)
                places += 1
                self._demand.want(step, self._expand)
                if number + 1 == len(self._depths):
                    self._depths.append(_Depth())
                self._depths[number + 1].due += self._expand

    def _end(self, number: int) -> list[CallId]:
        """No more steps of this depth will come: the best ones go on, the others never will."""
        depth = self._depths[number]
        depth.over = True
        self._promote(number)
        left = [s for *_, s in depth.ranked if s.index not in depth.promoted]
        return self._stepper.prune(left, f"not among the best {self._width} of its depth")
