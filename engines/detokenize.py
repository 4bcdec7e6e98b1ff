"""Text deltas from streamed token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_TAIL = 8
"""Tokens that may wait for the rest of a character; one of UTF-8 has four bytes."""


class Decoder(Protocol):
    """What `IncrementalDetokenizer` needs of a tokenizer; `ModelTokenizer` has it."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


class IncrementalDetokenizer:
    """Turns the token ids of one path into text, piece by piece.

    A piece never ends inside a character: the bytes of one that is split over tokens wait for the rest.
    Special tokens add nothing. From the first stop string on, text is withheld for good; a possible
    beginning of one at the end of the text waits until it is settled.

    Only a window of the last few tokens is decoded again, so that a long text costs linear time.
    """

    def __init__(self, decoder: Decoder, context_ids: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        """Start after `context_ids`, the last tokens of what came before; they add no text.

        Decoders of some models treat the first token of a text otherwise than the same token within it,
        so give a few tokens of the prompt. For a path that goes on from another, use `copy`.
        """
        self._decoder = decoder
        self._window = list(context_ids)[-_LONGEST_TAIL:]
        self._settled = len(self._window)
        self._stop = tuple(stop)
        self._held = ""
        self.matched_stop: str | None = None
        """The stop string that was met."""

    def copy(self) -> IncrementalDetokenizer:
        """The same state, for another continuation of this path."""
        other = IncrementalDetokenizer(self._decoder, (), self._stop)
        other._window = list(self._window)
        other._settled = self._settled
        other._held = self._held
        other.matched_stop = self.matched_stop
        return other

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens settle; may be empty."""
        if self.matched_stop is not None:
            return ""
        return self._release("".join(self._decode(token) for token in ids), last=False)

    def flush(self) -> str:
        """The rest, when no more tokens come. An incomplete character at the end is left out."""
        if self.matched_stop is not None:
            return ""
        before = self._decoder.decode(self._window[: self._settled])
        after = self._decoder.decode(self._window)
        self._settled = len(self._window)
        return self._release(after[len(before) :].rstrip(_REPLACEMENT), last=True)

    def _decode(self, token: int) -> str:
        self._window.append(token)
        waiting = len(self._window) - self._settled
        after = self._decoder.decode(self._window)
        if after.endswith(_REPLACEMENT) and waiting < _LONGEST_TAIL:
            return ""
        before = self._decoder.decode(self._window[: self._settled])
        del self._window[: self._settled]
        self._settled = len(self._window)
        return after[len(before) :]

    def _release(self, text: str, *, last: bool) -> str:
        if not self._stop:
            return text
        text = self._held + text
        met = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if met:
            at, self.matched_stop = min(met, key=lambda found: found[0])
            self._held = ""
            return text[:at]
        keep = 0 if last else max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest beginning of `stop`, but not all of it, that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
