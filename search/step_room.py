"""Dividing a room over the steps that want to write: who gets how many tokens, and whose KV makes way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from search.contract import NodeId
from search.ground import Ground
from search.segments import Segment
from search.slices import MIN_SLICE, Want, divide, fit_whole
from search.step import Step
from search.step_memory import StepMemory


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step wants to write next, after the node `after`."""

    step: Step
    segment: Segment
    after: NodeId


class StepRoom:
    """The tokens and KV tokens of one tree of steps.

    Args:
        ground: what the tree is built on.
        memory: the KV that its steps hold.
    """

    def __init__(self, ground: Ground, memory: StepMemory) -> None:
        self._ground = ground
        self._memory = memory
        self._reserve = ground.costs.score_tokens

    def divide(
        self,
        pieces: list[Piece],
        tokens: int,
        kv_tokens: int,
        worst: Callable[[], Iterable[Step]],
        *,
        held: int,
        idle: bool,
    ) -> list[int]:
        """Tokens for the first of the pieces, in their order.

        Args:
            tokens, kv_tokens: what is free.
            worst: steps whose KV may be let go of, the least promising first.
            held: tokens that paths under way may still take after the piece they write.
            idle: nothing is in flight, so that nothing else will ever free any.
        """
        wants = self._wants(pieces)
        needed = sum(w.rest + w.wake + w.given for w in wants)
        if needed > kv_tokens:
            used = {id(step) for piece in pieces for step in piece.step.path()}
            others = (step for step in worst() if id(step) not in used)
            kv_tokens += self._memory.let_go(others, needed - kv_tokens)
            wants = self._wants(pieces)  # what was let go of may have held their paths
        if self._ground.limits.whole:
            return self._whole(pieces, wants, tokens - held, kv_tokens - held, idle=idle)
        slices = divide(wants, tokens, kv_tokens, self._reserve)
        if slices or not idle:
            return slices
        need = wants[0].wake + wants[0].given + min(MIN_SLICE, wants[0].rest)
        kv_tokens += self._make_way(pieces[0].step, need - kv_tokens)
        return divide(self._wants(pieces[:1]), tokens, kv_tokens, self._reserve, floor=1)

    def given(self, segment: Segment) -> int:
        """Tokens that the search writes itself before a piece."""
        return 0 if segment.phrase is None else len(self._ground.phrases[segment.phrase].token_ids)

    def _whole(
        self, pieces: list[Piece], wants: list[Want], tokens: int, kv_tokens: int, *, idle: bool
    ) -> list[int]:
        """Slices where answers are one call each. A path that thinks first starts only where its answer has
        room too."""
        limit = self._ground.sample_tokens
        rests = [limit - piece.step.tokens - want.given for piece, want in zip(pieces, wants, strict=True)]
        wants = [replace(want, rest=rest) for want, rest in zip(wants, rests, strict=True)]
        slices = fit_whole(wants, tokens, kv_tokens, self._reserve)
        if not slices and idle:
            need = wants[0].wake + wants[0].given + wants[0].rest
            kv_tokens += self._make_way(pieces[0].step, need - kv_tokens)
            first = replace(self._wants(pieces[:1])[0], rest=rests[0])
            slices = fit_whole([first], tokens, kv_tokens, self._reserve)
        return [piece.segment.max_tokens for piece in pieces[: len(slices)]]

    def _wants(self, pieces: list[Piece]) -> list[Want]:
        tree = self._ground.tree
        return [Want(p.segment.max_tokens, tree.wake_cost(p.after), self.given(p.segment)) for p in pieces]

    def _make_way(self, step: Step, need: int) -> int:
        """Let go of as much of all others' KV as is needed. Returns how much was."""
        own = {id(s) for s in step.path()}
        return self._memory.let_go((s for s in self._memory.awake if id(s) not in own), need)
