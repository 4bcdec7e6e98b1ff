"""Which steps wait for their score, which are being scored, and which share the score of a twin."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from search.contract import CallId, Room, Score
from search.ground import Ground
from search.step import Step, StepState
from search.step_memory import StepMemory


class StepScores:
    """The scores of one tree of steps.

    Args:
        ground: what the tree is built on.
        memory: the KV that its steps hold.
    """

    def __init__(self, ground: Ground, memory: StepMemory) -> None:
        self._ground = ground
        self._memory = memory
        self._waiting: dict[int, Step] = {}
        self._asked: dict[CallId, Step] = {}
        self._first: dict[tuple[int, bool, bytes], Step] = {}
        self._sharing: dict[int, list[Step]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> list[CallId]:
        return list(self._asked)

    def twin(self, step: Step, token_ids: Iterable[int], *, complete: bool) -> Step | None:
        """The earlier sibling with the very same tokens; None when `step` is the first one with them.

        A step with which the model ended its answer is no twin of one that others may go on from.
        """
        parent = -1 if step.parent is None else step.parent.index
        digest = blake2b(array("q", token_ids).tobytes(), digest_size=16).digest()
        first = self._first.setdefault((parent, complete, digest), step)
        return None if first is step else first

    def want(self, step: Step, twin_of: Step | None = None) -> list[Step]:
        """A step is to have a score, that of its twin if there is one. Returns those that have it now."""
        step.state = StepState.SCORING
        if twin_of is None or (twin_of.state is StepState.PRUNED and not _is_done(twin_of)):
            self._waiting[step.index] = step
            return []
        step.twin_of = twin_of
        if _is_done(twin_of):
            score = None if twin_of.score is None else twin_of.path_scores[-1]
            return _give([step], score, twin_of.score_reason)
        self._sharing.setdefault(twin_of.index, []).append(step)
        self._memory.retire(step)
        return []

    def ask(self, room: Room, *, idle: bool) -> list[Score]:
        """Scores to ask for now. With `idle`, when nothing else is in flight, others' KV makes way."""
        costs, tree = self._ground.costs.score_tokens, self._ground.tree
        tokens, live = room.tokens, tree.live_tokens
        calls: list[Score] = []
        for step in list(self._waiting.values()):
            if len(calls) >= room.slots or tokens < costs:
                break
            kv_tokens = room.kv_tokens - (tree.live_tokens - live)
            if not self._wake(step, kv_tokens, make_way=idle and not self._asked):
                continue
            tokens -= costs
            del self._waiting[step.index]
            call = Score(next(self._ground.calls), step.nodes[-1], self._ground.root)
            step.call = call.id
            self._asked[call.id] = step
            calls.append(call)
        return calls

    def take(self, call: CallId, score: float | None, reason: str) -> list[Step]:
        """A score came, or failed for this reason. Returns the steps that are done with it."""
        step = self._asked.pop(call, None)
        if step is None:
            return []
        if score is not None and not 0.0 <= score <= 1.0:
            score, reason = None, f"score {score} is not in 0..1"
        return _give([step, *self._sharing.pop(step.index, [])], score, reason)

    def drop(self, step: Step) -> None:
        """A step is given up; those that were to share its score need one of their own."""
        self._waiting.pop(step.index, None)
        if step.call is not None:
            self._asked.pop(step.call, None)
        for twin in self._sharing.pop(step.index, []):
            self._waiting[twin.index] = twin

    def clear(self) -> None:
        """No score is wanted any more."""
        for pending in (self._waiting, self._asked, self._sharing):
            pending.clear()

    def _wake(self, step: Step, kv_tokens: int, *, make_way: bool) -> bool:
        if step.awake:
            return True
        tree, end = self._ground.tree, step.nodes[-1]
        need = tree.wake_cost(end)
        if need > kv_tokens and make_way:
            others = sorted(self._memory.awake, key=lambda s: not s.ended)
            kv_tokens += self._memory.let_go(others, need - kv_tokens)
            need = tree.wake_cost(end)  # what was let go of may have held its path
        if need > kv_tokens:
            return False
        self._memory.wake(step)
        return True


def _is_done(step: Step) -> bool:
    """Whether the score of a step has come or failed."""
    return step.score is not None or step.score_reason != ""


def _give(steps: list[Step], score: float | None, reason: str) -> list[Step]:
    for step in steps:
        step.call = None
        step.score, step.score_reason = score, reason if score is None else ""
        if score is not None:
            step.path_scores = (*step.path_scores, score)
    return steps
