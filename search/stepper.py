"""Growing a tree of steps: the machinery shared by all techniques that search over steps.

A technique says which step gets the next child; this module writes the steps within the room there is, scores
each one, and keeps the tree's KV within bounds. A step is one `Generate` up to the end of a step; it takes
several where tokens are short, or where it holds thinking or a block of code (`search.segments`).

KV is held by what is being written or scored and by the ends of paths that may still be gone on from. When it
is short, the least promising of these are let go of first: their paths are prefilled again if their turn
comes. So a search under a tight room narrows, and still ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from search.contract import (
    Call,
    CallId,
    Chunk,
    Event,
    Failed,
    Generated,
    Room,
    Scored,
)
from search.extract import is_thinking
from search.ground import Ground
from search.outcome import read_outcome
from search.segments import Segments
from search.step import Root, Step, StepState
from search.step_memory import StepMemory
from search.step_room import StepRoom
from search.step_scores import StepScores
from search.step_writer import Running, StepWriter
from search.tree import Tree


@dataclass(frozen=True, slots=True)
class Growth:
    """What a technique decides while steps are started.

    Args:
        grow: the step that gets the next child, `ROOT_STEP` for a first step, None for nothing now.
        begun: a child was made; it is among its parent's `children`.
        undone: there was no room for that child after all: it has never been.
        worst: steps whose KV may be let go of, the least promising one first.
    """

    grow: Callable[[], Step | Root | None]
    begun: Callable[[Step], None]
    undone: Callable[[Step], None]
    worst: Callable[[], Iterable[Step]]


class Stepper:
    """Writes and scores steps.

    Args:
        ground: what it is built on.
        max_depth: steps of a path at most; one that wants more is truncated.
        merge_twins: a step with the very same tokens as an earlier sibling is only a `twin` of it. Else both
            stand, and share one score.
        logprobs: as in `Generate`.
    """

    def __init__(
        self, ground: Ground, *, max_depth: int, merge_twins: bool = True, logprobs: int = 0
    ) -> None:
        self.tree: Tree = ground.tree
        self.memory = StepMemory(ground.tree)
        self._ground = ground
        self._max_depth = max_depth
        self._segments = Segments(ground.limits, ground.phrases, ground.sample_tokens, steps=True)
        self._limit = ground.sample_tokens
        self._limit_reason = "max_new_tokens reached" if self._limit < ground.context_left else "context full"
        self._score_tokens = ground.costs.score_tokens
        self._merge_twins = merge_twins
        self._writer = StepWriter(ground, self._segments, self.memory, logprobs)
        self._scores = StepScores(ground, self.memory)
        self._room = StepRoom(ground, self.memory)
        self._written = 0
        self._ended = 0

    @property
    def steps(self) -> list[Step]:
        """All steps, in the order they were begun."""
        return self._writer.steps

    @property
    def roots(self) -> list[Step]:
        """The first steps."""
        return self._writer.roots

    @property
    def busy(self) -> bool:
        """Whether anything is in flight, or waits to be written on or scored."""
        return bool(self.in_flight or self._writer.waiting or self._scores.waiting)

    @property
    def in_flight(self) -> int:
        return len(self._writer.running) + len(self._scores.in_flight)

    @property
    def longest(self) -> Step | None:
        """The step with the longest path of text; None when there is not one token."""
        return self._writer.longest

    @property
    def expected_tokens(self) -> float:
        """Charged tokens that one more step is expected to take."""
        mean = self._written / self._ended if self._ended else float(self._ground.limits.step_tokens)
        return max(1.0, mean) + self._score_tokens

    def ask(self, room: Room, growth: Growth) -> list[Call]:
        """Calls to start: scores first, then steps under way, then new ones."""
        live = self.tree.live_tokens
        calls: list[Call] = list(self._scores.ask(room, idle=not self._writer.running))
        slots = room.slots - len(calls)
        if slots < 1 or (not self._writer.prefilled and self._writer.running):
            return calls
        kept = len(calls) + self._scores.waiting + len(self._writer.running)
        tokens = room.tokens - self._score_tokens * kept - self._writer.unpaid
        kv_tokens = room.kv_tokens - (self.tree.live_tokens - live)
        # The prompt is prefilled once, by the first of all. More than there are tokens can never be served.
        most = min(slots, max(1, min(tokens, kv_tokens))) if self._writer.prefilled else 1
        wanting = sorted(self._writer.waiting.values(), key=lambda s: (not s.awake, s.index))[:most]
        under_way = len(wanting)
        while len(wanting) < most and (parent := growth.grow()) is not None:
            step = self._writer.child(None if isinstance(parent, Root) else parent)
            growth.begun(step)
            wanting.append(step)
        if not wanting:
            return calls
        pieces = [self._writer.piece(step) for step in wanting]
        slices = self._room.divide(
            pieces, tokens, kv_tokens, growth.worst, held=self._writer.held, idle=not self.in_flight
        )
        calls += [self._writer.generate(*served) for served in zip(pieces, slices, strict=False)]
        for step in reversed(wanting[max(under_way, len(slices)) :]):
            self._writer.undo(step)
            growth.undone(step)
        return calls

    def tell(self, event: Event) -> list[Step]:
        """Take in an event. Returns the steps that have ended by it, scored if they are to be.

        A step that completes an answer is returned when that is there, and again with its score.
        """
        if isinstance(event, Chunk):
            self._writer.grow(event)
        elif isinstance(event, Generated):
            running = self._writer.running.pop(event.call, None)
            return [] if running is None else self._end(running, event)
        elif isinstance(event, Scored):
            return self._settle(self._scores.take(event.call, event.score, ""))
        elif isinstance(event, Failed):
            if (running := self._writer.running.pop(event.call, None)) is not None:
                self._writer.prefilled = True
                return self._over(running.step, StepState.FAILED, event.reason)
            return self._settle(self._scores.take(event.call, None, f"not scored: {event.reason}"))
        return []

    def prune(self, steps: Iterable[Step], reason: str) -> list[CallId]:
        """Give steps up, with all that is under way below them. Returns calls to cancel.

        A finished answer is never given up.
        """
        cancels: list[CallId] = []
        gone = list(steps)
        while gone:
            step = gone.pop()
            gone += step.children
            if not step.finished and (step.state is StepState.OPEN or not step.ended):
                cancels += [] if step.call is None else [step.call]
                self._writer.drop(step)
                self._scores.drop(step)
                self._over(step, StepState.PRUNED, reason)
        return sorted(cancels)

    def stop(self, reason: str) -> list[CallId]:
        """End all that is under way. Returns the calls in flight, for cancelling."""
        cancels = sorted([*self._writer.running, *self._scores.in_flight])
        for step in self.steps:
            step.call = None
            if step.state is StepState.SCORING and step.has_text:
                # Its text is complete; only its score will not come.
                step.state, step.score_reason = StepState.COMPLETE, f"not scored: {reason}"
            elif not step.ended:
                step.state, step.reason = StepState.STOPPED, reason
        self.memory.retire_all()
        self._scores.clear()
        self._writer.clear()
        return cancels

    def release(self) -> None:
        """No KV is held any more.

        Raises:
            RuntimeError: calls are in flight.
        """
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} calls are in flight")
        self.memory.release()
        self._writer.prefilled = False

    def _end(self, running: Running, event: Generated) -> list[Step]:
        step = running.step
        step.call = None
        self._writer.prefilled = True
        ended = self._end_of(running, event)
        if step.state is not StepState.WAITING:
            self._ended += 1
            self._written += step.generated
        return ended

    def _end_of(self, running: Running, event: Generated) -> list[Step]:
        step = running.step
        if event.finish == "stop":
            return self._complete(step)
        if event.finish == "context":
            return self._over(step, StepState.TRUNCATED, "context full")
        if step.tokens >= self._limit:
            return self._over(step, StepState.TRUNCATED, self._limit_reason)
        if running.tokens == 0:
            return self._over(step, StepState.FAILED, "the engine ended a piece without a token of it")
        text, markers = self._writer.text(step), self._ground.limits.thinking
        # A piece may be used up just where it ends.
        matched = event.matched or next((u for u in running.segment.until if text.endswith(u)), None)
        if markers is not None and (matched == markers.close or is_thinking(text, markers)):
            step.thinking += running.tokens
        if not self._segments.ends_step(text, matched, step.generated - step.thinking):
            self._writer.rest(step)
            return []
        if step.depth + 1 >= self._max_depth:
            return self._over(step, StepState.TRUNCATED, "max_depth reached")
        return self._to_be_scored(step, complete=False)

    def _complete(self, step: Step) -> list[Step]:
        outcome = read_outcome(self._writer.text(step), self._ground.limits)
        step.has_text, step.visible = outcome.has_text, outcome.visible
        step.answer, step.key, step.calls_tools = outcome.answer, outcome.key, outcome.calls_tools
        step.finished = True
        return self._to_be_scored(step, complete=True)

    def _to_be_scored(self, step: Step, *, complete: bool) -> list[Step]:
        first = self._scores.twin(step, self._tokens_of(step), complete=complete)
        if first is not None and self._merge_twins:
            step.twin_of = first
            return self._over(step, StepState.TWIN, "a sibling has the same tokens")
        if complete and not step.visible:
            return self._settle([step])
        done = self._scores.want(step, first)
        # A finished answer counts from now on, its score later.
        return self._settle(done) if done else [step] * step.has_text

    def _tokens_of(self, step: Step) -> Iterable[int]:
        return (t for node in step.nodes for t in self.tree[node].token_ids)

    def _settle(self, steps: list[Step]) -> list[Step]:
        for step in steps:
            step.state = StepState.COMPLETE if step.finished else StepState.OPEN
            if step.finished:
                self.memory.retire(step)
        return steps

    def _over(self, step: Step, state: StepState, reason: str) -> list[Step]:
        step.call = None
        step.state, step.reason = state, reason
        self.memory.retire(step)
        return [step]
