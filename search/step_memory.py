"""Which steps of a tree hold KV."""

from __future__ import annotations

from collections.abc import Iterable

from search.step import Step, StepState
from search.tree import Tree


class StepMemory:
    """The steps whose KV is wanted for their own sake.

    A step that is let go of may still have its KV held by what follows it.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._awake: dict[int, Step] = {}

    @property
    def open(self) -> list[Step]:
        """Steps with KV that others may go on from."""
        return [step for step in self._awake.values() if step.state is StepState.OPEN]

    @property
    def awake(self) -> list[Step]:
        """All steps with KV, the latest first."""
        return sorted(self._awake.values(), key=lambda s: -s.index)

    def hold(self, step: Step) -> None:
        """A step's new node is live, and with it its path."""
        step.awake = True
        self._awake[step.index] = step

    def wake(self, step: Step) -> None:
        """Want the KV of the path to the end of a step again."""
        self.hold(step)
        self._tree.wake(step.nodes[-1])

    def retire(self, step: Step) -> None:
        """Want the KV of a step no more."""
        if self._awake.pop(step.index, None) is not None:
            step.awake = False
            for node in step.nodes:
                self._tree.retire(node)

    def let_go(self, steps: Iterable[Step], need: int) -> int:
        """Retire steps until so many tokens are free. Returns how many are."""
        before = self._tree.live_tokens
        for step in steps:
            if before - self._tree.live_tokens >= need:
                break
            self.retire(step)
        return before - self._tree.live_tokens

    def retire_all(self) -> None:
        """Nothing is wanted any more but the prompt."""
        for step in list(self._awake.values()):
            self.retire(step)

    def release(self) -> None:
        """The engine dropped all KV."""
        self._tree.release()
        for step in self._awake.values():
            step.awake = False
        self._awake.clear()
