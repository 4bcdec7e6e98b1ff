"""Writing the pieces of samples: the calls that write them, and the tokens that come back."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, replace

from search.contract import CallId, Chunk, Generate, Generated
from search.ground import Ground
from search.sample import Sample, State
from search.sample_room import Piece
from search.seeds import derive_seed
from search.segments import THINK_AGAIN, Segment, Segments


@dataclass(slots=True)
class Running:
    """A `Generate` in flight.

    `after`: tokens that its sample may still take when this call has used up its own.
    """

    sample: Sample
    segment: Segment
    after: int
    tokens: int = 0


class SampleWriter:
    """The samples of one search, and those of them that are being written.

    Args:
        ground: what the samples are drawn from.
        logprobs: as in `Generate`.

    Raises:
        ValueError: as `Segments`.
    """

    def __init__(self, ground: Ground, logprobs: int) -> None:
        self.samples: list[Sample] = []
        self.running: dict[CallId, Running] = {}
        self.waiting: list[Sample] = []  # for room, in their order
        self.unpaid = ground.unpaid
        self.longest: Sample | None = None
        self._ground = ground
        self._tree = ground.tree
        self._limit = ground.sample_tokens
        self._segments = Segments(ground.limits, ground.phrases, self._limit)
        self._logprobs = logprobs

    @property
    def held(self) -> int:
        """Tokens that the samples under way may still take after the pieces they write."""
        return sum(running.after for running in self.running.values())

    def text(self, sample: Sample) -> str:
        """The text of a sample that has nodes."""
        return self._tree.path_text(sample.nodes[-1], self._ground.root)

    def piece(self, sample: Sample) -> Piece:
        """What a sample is to write next."""
        text = ""
        if sample.nodes and self._ground.limits.thinking is not None:
            text = self.text(sample)
        segment = self._segments.next(text, sample.tokens, sample.thought)
        assert segment is not None, "a sample without tokens left has ended"
        if sample.again:
            phrase = self._ground.phrases[THINK_AGAIN]
            left = segment.max_tokens - len(phrase.token_ids)
            segment = replace(segment, phrase=THINK_AGAIN, max_tokens=left)
        given = 0 if segment.phrase is None else len(self._ground.phrases[segment.phrase].token_ids)
        return Piece(sample, segment, given)

    def generate(self, piece: Piece, slice_: int) -> Generate:
        """The call that writes so many tokens of a piece."""
        sample, segment, given = piece.sample, piece.segment, piece.given
        if sample.nodes:
            self.waiting.remove(sample)
        else:
            self.samples.append(sample)
        parent = sample.nodes[-1] if sample.nodes else self._ground.root
        if segment.phrase is not None:
            phrase = self._ground.phrases[segment.phrase]
            parent = self._tree.add_given(parent, phrase.token_ids, phrase.text)
            sample.nodes.append(parent)
            sample.tokens += given
            sample.thought += given if segment.thinking else 0
            sample.again = False
        node = self._tree.add(parent)
        seed = derive_seed(self._ground.seed, sample.index, len(sample.nodes))
        sample.nodes.append(node)
        sample.state, sample.awake = State.RUNNING, True
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
        self.running[call.id] = Running(sample, segment, after=self._limit - sample.tokens - slice_)
        return call

    def grow(self, chunk: Chunk) -> bool:
        """Take in new tokens. Returns whether they are of a running call whose sample has any by now."""
        running = self.running.get(chunk.call)
        if running is None:
            return False
        sample, count = running.sample, len(chunk.token_ids)
        self._tree.extend(sample.nodes[-1], chunk.token_ids, chunk.text)
        running.tokens += count
        sample.tokens += count
        sample.generated += count
        if running.segment.thinking:
            sample.thought += count
        sample.chars += len(chunk.text)
        if not sample.generated:
            return False
        if self.longest is None or _length(sample) > _length(self.longest):
            self.longest = sample
        return True

    def rest(self, sample: Sample, event: Generated) -> None:
        """A sample has used up its slice and wants to go on; perhaps with thinking that it has just ended."""
        self._think_again(sample, event)
        sample.state = State.WAITING
        insort(self.waiting, sample, key=lambda s: s.index)

    def drop(self, sample: Sample) -> list[CallId]:
        """A sample is written no more. Returns its call in flight, for cancelling."""
        calls = [call for call, running in self.running.items() if running.sample is sample]
        for call in calls:
            del self.running[call]
        if sample in self.waiting:
            self.waiting.remove(sample)
        return calls

    def clear(self) -> list[Sample]:
        """Nothing is written any more. Returns the samples that were under way."""
        under_way = [*(running.sample for running in self.running.values()), *self.waiting]
        self.running.clear()
        self.waiting.clear()
        return under_way

    def _think_again(self, sample: Sample, event: Generated) -> None:
        """Take back the end of a thinking section that is to go on."""
        cut, marker = event.matched_tokens, event.matched or ""
        thinking = self._ground.limits.thinking
        if not cut or thinking is None or marker != thinking.close:
            return
        text = self.text(sample).removesuffix(marker)
        tokens, thought = sample.tokens - cut, sample.thought - cut
        if not self._segments.may_think_again(text, tokens, thought, sample.continued):
            return
        self._tree.cut(sample.nodes[-1], cut, len(marker))
        sample.tokens, sample.thought = tokens, thought
        sample.chars -= len(marker)
        sample.continued += 1
        sample.again = True


def _length(sample: Sample) -> tuple[int, int, int]:
    return sample.chars, sample.tokens, -sample.index
