"""Dividing a room over the samples that want to write: who gets how many tokens, and whose KV makes way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from search.ground import Ground
from search.sample import Sample
from search.sample_memory import SampleMemory
from search.segments import Segment
from search.slices import MIN_SLICE, Want, divide, fit_whole


@dataclass(frozen=True, slots=True)
class Piece:
    """What a sample wants to write next.

    `given`: tokens that the search writes itself before it.
    """

    sample: Sample
    segment: Segment
    given: int


class SampleRoom:
    """The tokens and KV tokens of one search over samples.

    Args:
        ground: what the samples are drawn from.
        memory: the KV that they hold.
        reserve: charged tokens to keep back for each sample that writes.
    """

    def __init__(self, ground: Ground, memory: SampleMemory, reserve: int) -> None:
        self._whole = ground.limits.whole
        self._limit = ground.sample_tokens
        self._memory = memory
        self._reserve = reserve

    def divide(
        self,
        pieces: Sequence[Piece],
        tokens: int,
        kv_tokens: int,
        waiting: Sequence[Sample],
        *,
        held: int,
        idle: bool,
    ) -> list[int]:
        """Tokens for the first of the pieces, in their order.

        Args:
            pieces: at least one.
            tokens, kv_tokens: what is free.
            waiting: samples whose KV may be let go of, the youngest last.
            held: tokens that samples under way may still take after the piece they write.
            idle: nothing is in flight, so that nothing else will ever free any.
        """
        wants = [
            Want(p.segment.max_tokens, 0 if p.sample.awake else p.sample.tokens, p.given) for p in pieces
        ]
        # What is served is a beginning of the wants, so that the first one prefills the prompt.
        wants[0] = replace(wants[0], wake=wants[0].wake + self._memory.prompt_wake)
        others = [sample for sample in waiting if sample is not pieces[0].sample]
        if self._whole:
            return self._fit_whole(pieces, wants, tokens, kv_tokens, others, held=held, idle=idle)
        slices = divide(wants, tokens, kv_tokens, self._reserve)
        if slices or not idle:
            return slices
        least = wants[0].wake + wants[0].given + min(MIN_SLICE, wants[0].rest)
        kv_tokens = self._memory.put_to_sleep(others, least, kv_tokens)
        return divide(wants[:1], tokens, kv_tokens, self._reserve, floor=1)

    def _fit_whole(
        self,
        pieces: Sequence[Piece],
        wants: list[Want],
        tokens: int,
        kv_tokens: int,
        others: Sequence[Sample],
        *,
        held: int,
        idle: bool,
    ) -> list[int]:
        """Slices where answers are one call each.

        A sample that thinks first starts only where its answer has room too: several that have thought, and
        have no room left to answer in, would be of no use.
        """
        wants = [
            replace(want, rest=self._limit - piece.sample.tokens - piece.given)
            for piece, want in zip(pieces, wants, strict=True)
        ]
        slices = fit_whole(wants, tokens - held, kv_tokens - held, self._reserve)
        if not slices and idle:
            need = wants[0].wake + wants[0].given + wants[0].rest
            kv_tokens = self._memory.put_to_sleep(others, need, kv_tokens)
            slices = fit_whole(wants[:1], tokens, kv_tokens, self._reserve)
        return [piece.segment.max_tokens for piece in pieces[: len(slices)]]
