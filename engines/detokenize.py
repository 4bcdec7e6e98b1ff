"""Text deltas from streamed token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_TAIL = 8
"""Tokens that may wait for the rest of a character; one of UTF-8 has four bytes."""


_CUT_CHARACTER = 3
"""Tokens at most that a character has after its first one."""


class Decoder(Protocol):
    """What `IncrementalDetokenizer` needs of a tokenizer; `ModelTokenizer` has it.

    One whose tokens can be parts of a character also has `continuation_ids`, as `ModelTokenizer` does.
    """

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

        A character that they leave incomplete is given when its rest comes.

        Decoders of some models treat the first token of a text otherwise than the same token within it,
        so give a few tokens of the prompt. For a path that goes on from another, use `copy`.
        """
        self._decoder = decoder
        self._tails = _tails(getattr(decoder, "continuation_ids", ()))
        self._window = list(context_ids[-_LONGEST_TAIL - _CUT_CHARACTER :])
        for _ in range(_CUT_CHARACTER):
            # The rest of a character whose beginning is not there spoils what follows for some decoders.
            if self._whole(self._window).startswith(_REPLACEMENT):
                del self._window[0]
        self._settled = 0
        self._given = ""
        self._settle()
        self._stop = tuple(stop)
        self._held = ""
        self.matched_stop: str | None = None
        """The stop string that was met."""

    def copy(self) -> IncrementalDetokenizer:
        """The same state, held-back text included, for another continuation of this path."""
        other = IncrementalDetokenizer(self._decoder, (), self._stop)
        other._window = list(self._window)
        other._settled = self._settled
        other._given = self._given
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
        return self._release(self._settle(), last=True)

    def _settle(self) -> str:
        """Settle all but an incomplete character at the end; the text that this adds."""
        given, self._given = self._given, self._whole(self._window)
        self._settled = len(self._window)
        while self._settled and self._decoder.decode(self._window[: self._settled]) != self._whole(
            self._window[: self._settled]
        ):
            self._settled -= 1
        return self._given[len(given) :]

    def _whole(self, ids: Sequence[int]) -> str:
        """The text of these tokens without an incomplete character at the end."""
        text = self._decoder.decode(ids)
        if text.endswith(_REPLACEMENT):
            for tail in self._tails:
                completed = self._decoder.decode([*ids, *tail])
                if not completed.endswith(_REPLACEMENT):
                    return completed[:-1]
        return text

    def _decode(self, token: int) -> str:
        self._window.append(token)
        waiting = len(self._window) - self._settled
        after = self._decoder.decode(self._window)
        # A replacement character that nothing completes is one of the text itself.
        if (
            after.endswith(_REPLACEMENT)
            and waiting < _LONGEST_TAIL
            and not (self._tails and self._whole(self._window) == after)
        ):
            return ""
        added = after[len(self._given) :]
        del self._window[: self._settled]
        self._settled = len(self._window)
        self._given = self._decoder.decode(self._window)
        return added

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


def _tails(continuation_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Token runs of which one completes any incomplete character of UTF-8."""
    return [(first, *[continuation_ids[0]] * more) for more in range(3) for first in continuation_ids]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest beginning of `stop`, but not all of it, that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
