"""Writing the pieces of steps: new steps, the calls that write them, and what comes back of these."""

from __future__ import annotations

from dataclasses import dataclass

from search.contract import CallId, Chunk, Generate, NodeId
from search.ground import Ground
from search.seeds import derive_seed
from search.segments import Segment, Segments
from search.step import Step, StepState
from search.step_memory import StepMemory
from search.step_room import Piece


@dataclass(slots=True)
class Running:
    """A `Generate` in flight.

    `after`: tokens that its path may still take when this call has used up its own.
    """

    step: Step
    segment: Segment
    after: int
    tokens: int = 0


class StepWriter:
    """The steps of one tree, and those of them that are being written.

    Args:
        ground: what the tree is built on.
        segments: decides in which pieces.
        memory: the KV that its steps hold.
        logprobs: as in `Generate`.
    """

    def __init__(self, ground: Ground, segments: Segments, memory: StepMemory, logprobs: int) -> None:
        self.steps: list[Step] = []
        self.roots: list[Step] = []
        self.running: dict[CallId, Running] = {}
        self.waiting: dict[int, Step] = {}
        self.unpaid = ground.unpaid
        self.prefilled = False
        self.longest: Step | None = None
        self._ground = ground
        self._tree = ground.tree
        self._segments = segments
        self._memory = memory
        self._logprobs = logprobs
        self._seeds: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Tokens that the paths under way may still take after the pieces they write."""
        return sum(running.after for running in self.running.values())

    def child(self, parent: Step | None) -> Step:
        """A new step after `parent`; None for a first one."""
        siblings = self.roots if parent is None else parent.children
        step = Step(
            index=len(self.steps),
            parent=parent,
            number=len(siblings),
            depth=0 if parent is None else parent.depth + 1,
            tokens=0 if parent is None else parent.tokens,
            thought=0 if parent is None else parent.thought,
            logprob=0.0 if parent is None else parent.logprob,
            path_scores=() if parent is None else parent.path_scores,
        )
        seed = self._ground.seed if parent is None else self._seeds[parent.index]
        self._seeds[step.index] = derive_seed(seed, step.number, 0)
        siblings.append(step)
        self.steps.append(step)
        return step

    def undo(self, step: Step) -> None:
        """The last new step has never been."""
        (self.roots if step.parent is None else step.parent.children).pop()
        self.steps.pop()
        del self._seeds[step.index]

    def _end_node(self, step: Step | None) -> NodeId:
        """The node that the next piece of this step goes on from; for None the root of the search."""
        while step is not None and not step.nodes:
            step = step.parent
        return self._ground.root if step is None else step.nodes[-1]

    def text(self, step: Step) -> str:
        """The text of the path to the end of a step, from the root of the search."""
        return self._tree.path_text(self._end_node(step), self._ground.root)

    def piece(self, step: Step) -> Piece:
        """What a step is to write next."""
        written = step.generated - step.thinking
        segment = self._segments.next(self.text(step), step.tokens, step.thought, step_tokens=written)
        assert segment is not None, "a path without tokens left has ended"
        return Piece(step, segment, self._end_node(step))

    def generate(self, piece: Piece, slice_: int) -> Generate:
        """The call that writes so many tokens of a piece."""
        step, segment, parent = piece.step, piece.segment, piece.after
        self.waiting.pop(step.index, None)
        given = 0
        if segment.phrase is not None:
            phrase = self._ground.phrases[segment.phrase]
            given = len(phrase.token_ids)
            parent = self._tree.add_given(parent, phrase.token_ids, phrase.text)
            step.nodes.append(parent)
            step.tokens += given
            step.thought += given if segment.thinking else 0
        node = self._tree.add(parent)
        seed = derive_seed(self._seeds[step.index], len(step.nodes), 1)
        step.nodes.append(node)
        step.state = StepState.RUNNING
        self._memory.hold(step)
        if step.parent is not None:
            # Its children hold the path now.
            self._memory.retire(step.parent)
        call = Generate(
            next(self._ground.calls),
            parent,
            node,
            slice_,
            seed,
            given_tokens=given + self.unpaid,
            until=segment.until,
            logprobs=self._logprobs,
            constrained=segment.constrained and self._ground.constrained,
            tier=self._ground.tier,
        )
        self.unpaid = 0
        step.call = call.id
        self.running[call.id] = Running(
            step, segment, after=self._ground.sample_tokens - step.tokens - slice_
        )
        return call

    def grow(self, chunk: Chunk) -> None:
        """Take in new tokens."""
        running = self.running.get(chunk.call)
        if running is None:
            return
        step, count = running.step, len(chunk.token_ids)
        self._tree.extend(step.nodes[-1], chunk.token_ids, chunk.text)
        running.tokens += count
        step.tokens += count
        step.generated += count
        step.logprob += sum(chunk.logprobs)
        if running.segment.thinking:
            step.thought += count
        if not step.generated:
            return
        self.prefilled = True
        longest = self.longest
        if longest is None or (step.tokens, -step.index) > (longest.tokens, -longest.index):
            self.longest = step

    def rest(self, step: Step) -> None:
        """A step has used up its tokens and wants to go on."""
        step.state = StepState.WAITING
        self.waiting[step.index] = step

    def drop(self, step: Step) -> None:
        """A step is written no more."""
        self.waiting.pop(step.index, None)
        if step.call is not None:
            self.running.pop(step.call, None)

    def clear(self) -> None:
        """Nothing is written any more."""
        self.running.clear()
        self.waiting.clear()
