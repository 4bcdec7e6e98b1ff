"""Monte Carlo tree search over steps: PUCT, progressive widening, virtual loss.

Algorithm: each expansion walks down from the root. At a node with fewer continuations drawn than
`widen_k` * visits ** `widen_alpha` it draws one more (wider); else it goes to the child with the highest
Q + `c_puct` * P * sqrt(visits of the node) / (1 + visits of the child) (deeper). A new step's value is the
verifier's score of its path; it is backed up to all nodes above, whose Q is the mean of the values below.
There are no rollouts: a process score judges an unfinished path. P is the share of a child among the draws
from its parent, so the same step drawn again makes it more likely and not a new child. Up to `width`
expansions are under way at once; each counts as `virtual_loss` visits of value 0 on its path, so that the
others look elsewhere. A node below which nothing can be drawn before something comes back is passed over.

The search ends with `answers` complete paths, when `expansions` steps were drawn, or when nothing can be gone
on from. A truncated path backs up 0. A node at which known steps came up MOST_REPEATS times in a row is drawn
from no more.

Sources: Silver et al., "Mastering the game of Go without human knowledge", Nature 550, 2017, for PUCT;
Couëtoux et al., "Continuous Upper Confidence Trees", LION 2011, for progressive widening; Chaslot et al.,
"Parallel Monte-Carlo Tree Search", CG 2008, for virtual loss. Inoue et al., "Wider or Deeper? Scaling LLM
Inference-Time Compute with Adaptive Branching Tree Search", 2025 (arXiv 2503.04412), for why the branching
must adapt; they decide by Thompson sampling instead.

Known limits: a mean backs up a good step slowly where most steps beside it are bad. Few expansions make few
complete paths: it needs about depth * answers of them at the least.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import sqrt

from search.bounds import Bounds
from search.contract import CallId
from search.ground import Ground
from search.params import MAX_SAMPLES, require_float, require_int
from search.step import ROOT_STEP, Root, Step, StepState
from search.stepwise import StepParams, StepSearch

MAX_EXPANSIONS = 65536
MOST_REPEATS = 8


@dataclass(frozen=True, slots=True)
class MctsParams(StepParams):
    """Parameters of `Mcts`, beside those of `StepParams`.

    Args:
        expansions: steps drawn at most.
        answers: complete paths that are enough.
        width: expansions under way at once.
        c_puct: how much rarely visited children are favoured.
        widen_k, widen_alpha: continuations drawn from a node grow as `widen_k` * visits ** `widen_alpha`.
        virtual_loss: visits of value 0 that an expansion under way counts as.

    Raises:
        ValueError: a value is out of its range.
    """

    expansions: int = 64
    answers: int = 8
    width: int = 8
    c_puct: float = 0.5
    widen_k: float = 3.0
    widen_alpha: float = 0.3
    virtual_loss: float = 0.5

    def __post_init__(self) -> None:
        StepParams.__post_init__(self)
        require_int("expansions", self.expansions, 1, MAX_EXPANSIONS)
        require_int("answers", self.answers, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_float("c_puct", self.c_puct, 0.0, 100.0)
        require_float("widen_k", self.widen_k, 1.0, 1000.0)
        require_float("widen_alpha", self.widen_alpha, 0.0, 1.0)
        require_float("virtual_loss", self.virtual_loss, 0.0, 100.0)

    def most_tokens(self, bounds: Bounds, _: object) -> int:
        """Charged tokens at most: each expansion is one step, and one path is written to its end."""
        limits, whole = bounds.limits, bounds.sample_tokens
        step = whole if limits.whole or limits.thinking is not None else min(limits.step_tokens, whole)
        return (self.expansions + self.max_retries) * (step + bounds.costs.score_tokens) + whole


@dataclass(slots=True, eq=False)
class _Node:
    """The root, or a step that may be gone on from.

    Args:
        step, parent: None for the root.
        visits, total: values backed up to it, and their sum.
        pending: expansions under way below it.
        draws: continuations drawn, those under way included and failed ones left out.
        repeats: how many of the last ones in a row were drawn before.
        children: those that may be gone on from.
        ways: how many of these have something to do now, or below them.
        active: whether it has.
    """

    step: Step | None
    parent: _Node | None
    visits: int = 0
    total: float = 0.0
    pending: int = 0
    draws: int = 0
    repeats: int = 0
    children: list[_Node] = field(default_factory=list)
    ways: int = 0
    active: bool = False


class Mcts(StepSearch):
    """See the module's docstring."""

    def __init__(self, params: MctsParams, ground: Ground) -> None:
        super().__init__(ground, params)
        self._params = params
        self._root = _Node(None, None)
        self._nodes: dict[int, _Node] = {}
        self._drawn: dict[int, int] = defaultdict(int)  # by a step's number: how often it was drawn again
        self._spent = 0
        self._answers = 0
        self._refresh(self._root)

    def _grow(self) -> Step | Root | None:
        p = self._params
        if self._spent >= p.expansions or self._root.pending >= p.width or not self._root.active:
            return None
        node = self._root
        while not self._may_widen(node):
            node = max((c for c in node.children if c.active), key=self._puct)
        return ROOT_STEP if node.step is None else node.step

    def _begun(self, step: Step) -> None:
        self._spent += 1
        self._pend(step, 1)

    def _undone(self, step: Step) -> None:
        self._spent -= 1
        self._pend(step, -1)

    def _take(self, step: Step) -> list[CallId]:
        node = self._node(step.parent)
        value: float | None = 0.0
        match step.state:
            case StepState.OPEN:
                child = self._nodes[step.index] = _Node(step, node)
                node.children.append(child)
                child.visits, child.total = 1, self.value(step)
                value = child.total
                self._refresh(child)
            case StepState.COMPLETE if step.has_text:
                self._answers += 1
                value = self.value(step)
            case StepState.FAILED:
                node.draws -= 1
                value = None
                if self._retries > 0:
                    self._retries -= 1
                    self._spent -= 1
            case StepState.TWIN:
                value = None
                if step.twin_of is not None:
                    self._drawn[step.twin_of.index] += 1
        if step.state is not StepState.FAILED:
            node.repeats = node.repeats + 1 if step.state is StepState.TWIN else 0
        self._back_up(node, value)
        return []

    def _enough(self) -> str | None:
        return "enough_answers" if self._answers >= self._params.answers else None

    def _node(self, step: Step | None) -> _Node:
        return self._root if step is None else self._nodes[step.index]

    def _pend(self, child: Step, change: int) -> None:
        """An expansion is under way below a step, or never was."""
        node: _Node | None = self._node(child.parent)
        assert node is not None
        node.draws += change
        lowest = node
        while node is not None:
            node.pending += change
            node = node.parent
        self._refresh(lowest)

    def _back_up(self, lowest: _Node, value: float | None) -> None:
        """An expansion below a node came back; without a value where it told nothing."""
        node: _Node | None = lowest
        while node is not None:
            node.pending -= 1
            if value is not None:
                node.visits += 1
                node.total += value
            node = node.parent
        self._refresh(lowest)

    def _refresh(self, lowest: _Node) -> None:
        """See again, from a node up to the root, where there is something to do."""
        node: _Node | None = lowest
        while node is not None:
            active = node.ways > 0 or self._may_widen(node)
            if active != node.active and node.parent is not None:
                node.parent.ways += 1 if active else -1
            node.active = active
            node = node.parent

    def _may_widen(self, node: _Node) -> bool:
        if node.repeats >= MOST_REPEATS:
            return False
        p = self._params
        if node.draws < p.widen_k * max(1, node.visits) ** p.widen_alpha:
            return True
        # Nothing to go on from, and nothing will come: then wider is the only way.
        return node.ways == 0 and node.pending == 0

    def _puct(self, node: _Node) -> tuple[float, int]:
        assert node.parent is not None and node.step is not None
        losses = self._params.virtual_loss * node.pending
        visits = node.visits + losses
        above = node.parent.visits + self._params.virtual_loss * node.parent.pending
        prior = (1 + self._drawn.get(node.step.index, 0)) / max(1, node.parent.draws)
        quality = node.total / visits
        explore = self._params.c_puct * prior * sqrt(max(1.0, above)) / (1.0 + visits)
        return quality + explore, -node.step.index
