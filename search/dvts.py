"""Diverse verifier tree search: independent subtrees, each goes on from the best of its continuations.

Algorithm: each of `subtrees` subtrees draws `expand` first steps. When they have come back, the one that the
verifier likes best gets `expand` continuations, and so on until the best one completes an answer or nothing
can be gone on from. All answers that were completed on the way stay in the final choice. Subtrees share
nothing and never wait for one another; within one, the best is known only when all its siblings are back.

Sources: Beeching et al., "Scaling test-time compute with open models", Hugging Face blog, 2024, section
"DVTS"; it runs the subtrees in step, all at one depth.

Known limits: a subtree whose best step is wrong by a mistake of the verifier never comes back to another one.
Subtrees may begin with the same step by chance, since each draws on its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from search.contract import CallId
from search.ground import Ground
from search.params import MAX_SAMPLES, require_int
from search.step import ROOT_STEP, Step, StepState
from search.stepwise import StepParams, StepSearch


@dataclass(frozen=True, slots=True)
class DvtsParams(StepParams):
    """Parameters of `Dvts`, beside those of `StepParams`.

    Args:
        subtrees: independent subtrees.
        expand: continuations of each step that is gone on from.

    Raises:
        ValueError: a value is out of its range.
    """

    subtrees: int = 4
    expand: int = 4

    def __post_init__(self) -> None:
        StepParams.__post_init__(self)
        require_int("subtrees", self.subtrees, 1, MAX_SAMPLES)
        require_int("expand", self.expand, 1, MAX_SAMPLES)


@dataclass(slots=True)
class _Subtree:
    """Where one subtree stands: `due` continuations are still out, `back` are those that stand."""

    due: int
    back: list[Step] = field(default_factory=list)


class Dvts(StepSearch):
    """See the module's docstring."""

    def __init__(self, params: DvtsParams, ground: Ground) -> None:
        # A step that two subtrees draw is a step of each.
        super().__init__(ground, params, merge_twins=False)
        self._expand = params.expand
        self._subtrees = [_Subtree(params.expand) for _ in range(params.subtrees)]
        # By the number of a first step: whose it is.
        self._owners = [i for i in range(params.subtrees) for _ in range(params.expand)]
        # By the number of a step that is gone on from.
        self._home: dict[int, int] = {}
        self._demand.want(ROOT_STEP, params.subtrees * params.expand)

    def _take(self, step: Step) -> list[CallId]:
        number = self._owners[step.number] if step.parent is None else self._home[step.parent.index]
        if self._retry(step):
            if step.parent is None:
                self._owners.append(number)
            return []
        subtree = self._subtrees[number]
        subtree.due -= 1
        if step.state is StepState.OPEN or (step.state is StepState.COMPLETE and step.has_text):
            subtree.back.append(step)
        return [] if subtree.due else self._descend(number, subtree)

    def _descend(self, number: int, subtree: _Subtree) -> list[CallId]:
        """All continuations are back: go on from the best one."""
        best = min(subtree.back, key=lambda s: (-self.value(s), s.index), default=None)
        left = [s for s in subtree.back if s is not best]
        subtree.back = []
        if best is not None and best.state is StepState.OPEN:
            self._home[best.index] = number
            self._demand.want(best, self._expand)
            subtree.due = self._expand
        return self._stepper.prune(left, "a sibling is the best of its subtree")
