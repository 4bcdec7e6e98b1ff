"""One step of reasoning in a tree of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class StepState(StrEnum):
    """Where a step stands.

    `running`: a call writes it. `waiting`: it is not ended and wants to go on. `scoring`: its score is wanted
    or asked for. `open`: it ended, and others may go on from it. `complete`: the model ended its answer
    with it. `truncated`: the path has no tokens left. `failed`: the engine lost it. `twin`: a sibling has the
    very same tokens. `pruned`: the technique gave it up. `stopped`: the search ended first.
    """

    RUNNING = "running"
    WAITING = "waiting"
    SCORING = "scoring"
    OPEN = "open"
    COMPLETE = "complete"
    TRUNCATED = "truncated"
    FAILED = "failed"
    TWIN = "twin"
    PRUNED = "pruned"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Root:
    """Where first steps grow from."""


ROOT_STEP = Root()


@dataclass(slots=True, eq=False)
class Step:
    """One step.

    Args:
        index: its number, from 0 in the order of starting.
        parent: the step it follows; None for a first one.
        number: its number among its siblings, from 0.
        depth: steps before it on its path.
        nodes: its own nodes in the search's tree.
        tokens: on the path from the root of the search to its end, given ones included.
        generated: those the model wrote for this step alone.
        thought: tokens of thinking on the path, while that was under a budget.
        logprob: summed log-probability of the path's tokens, as far as the engine told it; 0 of those it did
            not write.
        score: of the path to its end, 0..1; None when it has none. Of a complete path it is reduced.
        awake: whether its KV is wanted.
        path_scores: of all scored steps of its path, its own last.
        thinking: tokens of thinking that the model wrote in this step.
        twin_of: the first sibling with the same tokens.
        children: steps that follow it.
        call: what is in flight for it.
        finished: the model ended its answer with it.
        answer, key, visible, has_text, calls_tools: as in `Sample`, when it is complete.
    """

    index: int
    parent: Step | None
    number: int
    depth: int
    nodes: list[int] = field(default_factory=list)
    tokens: int = 0
    generated: int = 0
    thought: int = 0
    thinking: int = 0
    state: StepState = StepState.RUNNING
    reason: str = ""
    awake: bool = False
    call: int | None = None
    finished: bool = False
    logprob: float = 0.0
    score: float | None = None
    score_reason: str = ""
    path_scores: tuple[float, ...] = ()
    verdict: str | None = None
    twin_of: Step | None = None
    children: list[Step] = field(default_factory=list)
    has_text: bool = False
    visible: bool = False
    answer: str | None = None
    key: str | None = None
    calls_tools: bool = False

    @property
    def ended(self) -> bool:
        """Whether its own writing and scoring is over, well or badly."""
        return self.state not in (StepState.RUNNING, StepState.WAITING, StepState.SCORING)

    @property
    def leaf(self) -> bool:
        """Whether nothing follows it."""
        return not self.children

    def path(self) -> list[Step]:
        """The steps from the first one to this one."""
        steps: list[Step] = []
        step: Step | None = self
        while step is not None:
            steps.append(step)
            step = step.parent
        return steps[::-1]
