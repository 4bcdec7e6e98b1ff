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
    Checked,
    Chunk,
    Event,
    Failed,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
)
from search.ground import Ground
from search.outcome import read_outcome
from search.seeds import derive_seed
from search.segments import Segment, Segments
from search.slices import MIN_SLICE, Want, divide, fit_whole
from search.step import Step, StepState
from search.tree import Tree


@dataclass(slots=True)
class _Running:
    step: Step
    segment: Segment
    tokens: int = 0


class Stepper:
    """Writes and scores steps.

    Args:
        ground: what it is built on.
        score: whether steps are scored.
        merge_twins: a step with the very same tokens as an earlier sibling is only a `twin` of it. Else both
            stand, and share one score.
    """

    def __init__(self, ground: Ground, *, score: bool = True, merge_twins: bool = True) -> None:
        self.tree: Tree = ground.tree
        self.steps: list[Step] = []
        self.roots: list[Step] = []
        self.failed = 0
        self._ground = ground
        self._segments = Segments(ground.limits, ground.phrases, ground.sample_tokens, steps=True)
        self._limit = ground.sample_tokens
        self._limit_reason = "max_new_tokens reached" if self._limit < ground.context_left else "context full"
        self._score = score
        self._score_tokens = ground.costs.score_tokens if score else 0
        self._merge_twins = merge_twins
        self._seeds: dict[int, int] = {}
        self._running: dict[CallId, _Running] = {}
        self._scoring: dict[CallId, Step] = {}
        self._to_score: list[Step] = []
        self._waiting: list[Step] = []
        self._sharing: dict[int, list[Step]] = {}
        self._unpaid = ground.unpaid
        self._prefilled = False
        self._longest: tuple[int, int, Step] | None = None
        self._written = 0
        self._ended = 0

    @property
    def busy(self) -> bool:
        """Whether anything is in flight, or waits to be written on or scored."""
        return bool(self._running or self._scoring or self._to_score or self._waiting)

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._scoring)

    @property
    def longest(self) -> Step | None:
        """The step with the longest path of text; None when there is not one token."""
        return None if self._longest is None else self._longest[2]

    @property
    def expected_tokens(self) -> float:
        """Charged tokens that one more step is expected to take."""
        mean = self._written / self._ended if self._ended else float(self._ground.limits.step_tokens)
        return max(1.0, mean) + self._score_tokens

    def ask(self, room: Room, grow: Callable[[], Step | Root | None], worst: Iterable[Step]) -> list[Call]:
        """Scores first, then steps under way, then new ones.

        Args:
            room: what may be started.
            grow: the step that gets the next child, `ROOT_STEP` for a first step, None for nothing now. It is
                asked again after each child, which is among `children` by then.
            worst: steps whose KV may be let go of, the least promising one first.
        """
        live = self.tree.live_tokens
        calls: list[Call] = list(self._scores(room))
        slots = room.slots - len(calls)
        if slots < 1 or (not self._prefilled and self._running):
            return calls
        wanting = sorted(self._waiting, key=lambda s: (not s.awake, s.index))[:slots]
        if not self._prefilled:
            wanting = wanting[:1]
        fresh: list[Step] = []
        most = slots if self._prefilled else 1
        while len(wanting) < most and (parent := grow()) is not None:
            step = self._child(None if isinstance(parent, Root) else parent)
            fresh.append(step)
            wanting.append(step)
        if not wanting:
            return calls
        kept = len(calls) + len(self._to_score) + len(self._running)
        tokens = room.tokens - self._score_tokens * kept - self._unpaid
        kv_tokens = room.kv_tokens - (self.tree.live_tokens - live)
        segments = [self._segment(step) for step in wanting]
        slices = self._slices(wanting, segments, tokens, kv_tokens, worst)
        for step, segment, slice_ in zip(wanting, segments, slices, strict=False):
            calls.append(self._generate(step, segment, slice_))
        for step in reversed(fresh[max(0, len(slices) - (len(wanting) - len(fresh))) :]):
            self._undo(step)
        return calls

    def tell(self, event: Event) -> list[Step]:
        """Take in an event. Returns the steps that have ended by it, scored if they are to be.

        A step that completes an answer is returned when that is there, and again with its score.
        """
        if isinstance(event, Chunk):
            self._grow(event)
        elif isinstance(event, Generated):
            running = self._running.pop(event.call, None)
            return [] if running is None else self._end(running, event)
        elif isinstance(event, Scored):
            step = self._scoring.pop(event.call, None)
            if step is not None:
                ok = 0.0 <= event.score <= 1.0
                return self._scored(step, event.score if ok else None, f"score {event.score} is not in 0..1")
        elif isinstance(event, Failed):
            if (running := self._running.pop(event.call, None)) is not None:
                self._prefilled = True
                return self._fail(running.step, event.reason)
            if (step := self._scoring.pop(event.call, None)) is not None:
                return self._scored(step, None, f"not scored: {event.reason}")
        elif isinstance(event, Checked):
            return []
        return []

    def prune(self, steps: Iterable[Step], reason: str) -> list[CallId]:
        """Give steps up, with all that is under way below them. Returns calls to cancel."""
        cancels: list[CallId] = []
        gone = list(steps)
        while gone:
            step = gone.pop()
            gone += step.children
            if step.state in (StepState.OPEN, StepState.RUNNING, StepState.WAITING, StepState.SCORING):
                cancels += self._drop(step, StepState.PRUNED, reason)
        return cancels

    def stop(self, reason: str) -> list[CallId]:
        """End all that is under way. Returns the calls in flight, for cancelling."""
        cancels: list[CallId] = []
        for step in self.steps:
            if step.state is StepState.SCORING and step.has_text:
                # Its text is complete; only its score will not come.
                cancels += self._drop(step, StepState.COMPLETE, "")
                step.score_reason = f"not scored: {reason}"
            elif not step.ended:
                cancels += self._drop(step, StepState.STOPPED, reason)
            else:
                self._retire(step)
        self._waiting.clear()
        self._to_score.clear()
        return sorted(cancels)

    def release(self) -> None:
        """No KV is held any more.

        Raises:
            RuntimeError: calls are in flight.
        """
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} calls are in flight")
        self.tree.release()
        for step in self.steps:
            step.awake = False
        self._prefilled = False

    def _child(self, parent: Step | None) -> Step:
        siblings = self.roots if parent is None else parent.children
        step = Step(
            index=len(self.steps),
            parent=parent,
            number=len(siblings),
            depth=0 if parent is None else parent.depth + 1,
            tokens=0 if parent is None else parent.tokens,
            thought=0 if parent is None else parent.thought,
            path_scores=() if parent is None else parent.path_scores,
        )
        seed = self._ground.seed if parent is None else self._seeds[parent.index]
        self._seeds[step.index] = derive_seed(seed, step.number, 0)
        siblings.append(step)
        self.steps.append(step)
        return step

    def _undo(self, step: Step) -> None:
        """A new step that there was no room for has never been."""
        (self.roots if step.parent is None else step.parent.children).pop()
        self.steps.pop()
        del self._seeds[step.index]

    def _end_node(self, step: Step | None) -> int:
        """The node that the next piece of this step goes on from; for None the root of the search."""
        while step is not None and not step.nodes:
            step = step.parent
        return self._ground.root if step is None else step.nodes[-1]

    def _text(self, step: Step) -> str:
        return self.tree.path_text(self._end_node(step), self._ground.root)

    def _segment(self, step: Step) -> Segment:
        segment = self._segments.next(self._text(step), step.tokens, step.thought, step_tokens=step.generated)
        assert segment is not None, "a path without tokens left has ended"
        return segment

    def _given(self, segment: Segment) -> int:
        return 0 if segment.phrase is None else len(self._ground.phrases[segment.phrase].token_ids)

    def _slices(
        self,
        wanting: list[Step],
        segments: list[Segment],
        tokens: int,
        kv_tokens: int,
        worst: Iterable[Step],
    ) -> list[int]:
        wants = self._wants(wanting, segments)
        needed = sum(w.rest + w.wake + w.given for w in wants)
        if needed > kv_tokens:
            used = {id(step) for w in wanting for step in w.path()}
            kv_tokens += self._let_go((s for s in worst if id(s) not in used), needed - kv_tokens)
            wants = self._wants(wanting, segments)  # what was let go of may have held their paths
        fit = fit_whole if self._ground.limits.whole else divide
        slices = fit(wants, tokens, kv_tokens, self._score_tokens)
        if slices or self.in_flight:
            return slices
        least = wants[0].wake + wants[0].given + min(MIN_SLICE, wants[0].rest)
        own = {id(step) for step in wanting[0].path()}
        kv_tokens += self._let_go([s for s in self.steps[::-1] if id(s) not in own], least - kv_tokens)
        wants = self._wants(wanting[:1], segments[:1])
        if self._ground.limits.whole:
            return fit_whole(wants[:1], tokens, kv_tokens, self._score_tokens)
        return divide(wants[:1], tokens, kv_tokens, self._score_tokens, floor=1)

    def _wants(self, steps: list[Step], segments: list[Segment]) -> list[Want]:
        return [
            Want(segment.max_tokens, self.tree.wake_cost(self._end_node(step)), self._given(segment))
            for step, segment in zip(steps, segments, strict=True)
        ]

    def _let_go(self, steps: Iterable[Step], need: int) -> int:
        """Stop wanting the KV of steps until so many tokens are free. Returns how many are."""
        before = self.tree.live_tokens
        for step in steps:
            if before - self.tree.live_tokens >= need:
                break
            if step.awake:
                self._retire(step)
        return before - self.tree.live_tokens

    def _scores(self, room: Room) -> list[Score]:
        tokens, live = room.tokens, self.tree.live_tokens
        calls: list[Score] = []
        for step in list(self._to_score):
            if len(calls) >= room.slots or tokens < self._score_tokens:
                break
            if not self._wake(step, room.kv_tokens - (self.tree.live_tokens - live)):
                continue
            tokens -= self._score_tokens
            self._to_score.remove(step)
            call = Score(next(self._ground.calls), step.nodes[-1], self._ground.root)
            self._scoring[call.id] = step
            calls.append(call)
        return calls

    def _wake(self, step: Step, kv_tokens: int) -> bool:
        if step.awake:
            return True
        need = self.tree.wake_cost(step.nodes[-1])
        if need > kv_tokens and not self.in_flight:
            kv_tokens += self._let_go([s for s in self.steps if s is not step and s.ended], need - kv_tokens)
            kv_tokens += self._let_go([s for s in self.steps if s is not step], need - kv_tokens)
            need = self.tree.wake_cost(step.nodes[-1])
        if need > kv_tokens:
            return False
        step.awake = True
        self.tree.wake(step.nodes[-1])
        return True

    def _generate(self, step: Step, segment: Segment, slice_: int) -> Generate:
        if step in self._waiting:
            self._waiting.remove(step)
        parent = self._end_node(step)
        given = self._given(segment)
        if segment.phrase is not None:
            phrase = self._ground.phrases[segment.phrase]
            parent = self.tree.add_given(parent, phrase.token_ids, phrase.text)
            step.nodes.append(parent)
            step.tokens += given
        node = self.tree.add(parent)
        seed = derive_seed(self._seeds[step.index], len(step.nodes), 1)
        step.nodes.append(node)
        step.state, step.awake = StepState.RUNNING, True
        if step.parent is not None:
            # Its children hold the path now.
            self._retire(step.parent)
        call = Generate(
            next(self._ground.calls),
            parent,
            node,
            slice_,
            seed,
            given_tokens=given + self._unpaid,
            until=segment.until,
            constrained=segment.constrained,
            tier=self._ground.tier,
        )
        self._unpaid = 0
        self._running[call.id] = _Running(step, segment)
        return call

    def _grow(self, chunk: Chunk) -> None:
        running = self._running.get(chunk.call)
        if running is None:
            return
        step, count = running.step, len(chunk.token_ids)
        self.tree.extend(step.nodes[-1], chunk.token_ids, chunk.text)
        running.tokens += count
        step.tokens += count
        step.generated += count
        if running.segment.thinking:
            step.thought += count
        if not step.generated:
            return
        self._prefilled = True
        if self._longest is None or (step.tokens, -step.index) > self._longest[:2]:
            self._longest = (step.tokens, -step.index, step)

    def _end(self, running: _Running, event: Generated) -> list[Step]:
        step = running.step
        self._prefilled = True
        if event.finish == "stop":
            return self._complete(step)
        if event.finish == "context":
            return self._over(step, StepState.TRUNCATED, "context full")
        if step.tokens >= self._limit:
            return self._over(step, StepState.TRUNCATED, self._limit_reason)
        if running.tokens == 0:
            return self._fail(step, "the engine ended a piece by length without a token")
        if self._segments.ends_step(self._text(step), event.matched, step.generated):
            return self._open(step)
        step.state = StepState.WAITING
        self._waiting.append(step)
        return []

    def _open(self, step: Step) -> list[Step]:
        self._count(step)
        return self._to_be_scored(step, StepState.OPEN)

    def _complete(self, step: Step) -> list[Step]:
        self._count(step)
        outcome = read_outcome(self._text(step), self._ground.limits)
        step.has_text, step.visible = outcome.has_text, outcome.visible
        step.answer, step.key, step.calls_tools = outcome.answer, outcome.key, outcome.calls_tools
        return self._to_be_scored(step, StepState.COMPLETE)

    def _to_be_scored(self, step: Step, then: StepState) -> list[Step]:
        first = self._same_sibling(step)
        if first is not None and self._merge_twins:
            step.twin_of = first
            return self._over(step, StepState.TWIN, "a sibling has the same tokens")
        if not self._score or (then is StepState.COMPLETE and not step.visible):
            return self._settle(step, then)
        if first is not None:
            step.twin_of = first
            if first.ended:
                return self._scored(step, first.score, first.score_reason)
            self._sharing.setdefault(first.index, []).append(step)
            self._retire(step)
        else:
            self._to_score.append(step)
        step.state = StepState.SCORING
        # A finished answer counts from now on, its score later.
        return [step] if step.has_text else []

    def _same_sibling(self, step: Step) -> Step | None:
        siblings = self.roots if step.parent is None else step.parent.children
        own = self._tokens_of(step)
        for other in siblings:
            over = other.state in (StepState.OPEN, StepState.COMPLETE, StepState.SCORING, StepState.PRUNED)
            if other is not step and over and other.twin_of is None and self._tokens_of(other) == own:
                return other
        return None

    def _tokens_of(self, step: Step) -> tuple[int, ...]:
        return tuple(t for node in step.nodes for t in self.tree[node].token_ids)

    def _scored(self, step: Step, score: float | None, reason: str) -> list[Step]:
        settled: list[Step] = []
        for s in [step, *self._sharing.pop(step.index, [])]:
            s.score, s.score_reason = score, reason if score is None else ""
            if score is not None:
                s.path_scores = (*s.path_scores, score)
            settled += self._settle(s, StepState.COMPLETE if s.has_text else StepState.OPEN)
        return settled

    def _settle(self, step: Step, state: StepState) -> list[Step]:
        step.state = state
        if state is StepState.COMPLETE:
            self._retire(step)
        return [step]

    def _over(self, step: Step, state: StepState, reason: str) -> list[Step]:
        self._count(step)
        step.state, step.reason = state, reason
        self._retire(step)
        return [step]

    def _fail(self, step: Step, reason: str) -> list[Step]:
        self.failed += 1
        step.state, step.reason = StepState.FAILED, reason
        self._retire(step)
        return [step]

    def _drop(self, step: Step, state: StepState, reason: str) -> list[CallId]:
        cancels = [call for call, running in self._running.items() if running.step is step]
        cancels += [call for call, scored in self._scoring.items() if scored is step]
        for call in cancels:
            self._running.pop(call, None)
            self._scoring.pop(call, None)
        for waiting in (self._waiting, self._to_score):
            if step in waiting:
                waiting.remove(step)
        step.state, step.reason = state, reason
        self._retire(step)
        for twin in self._sharing.pop(step.index, []):
            cancels += self._drop(twin, state, reason)
        return cancels

    def _count(self, step: Step) -> None:
        self._ended += 1
        self._written += step.generated

    def _retire(self, step: Step) -> None:
        step.awake = False
        for node in step.nodes:
            self.tree.retire(node)


@dataclass(frozen=True, slots=True)
class Root:
    """Where first steps grow from."""


ROOT_STEP = Root()
