"""The text of a search's paths, piece by piece as their tokens come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engines.detokenize import IncrementalDetokenizer
from orchestrator.catalog import Tokenizer
from search.tree import ROOT, Tree

_CONTEXT = 8
_LONGEST_END = 64


class Piece:
    """The text of one call.

    Args:
        detokenizer: at where the call begins.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        self.detokenizer = detokenizer
        self._last: deque[str] = deque(maxlen=_LONGEST_END)  # what each of the last tokens added

    @property
    def matched_stop(self) -> str | None:
        """The stop string of the request that was met."""
        return self.detokenizer.matched_stop

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens add."""
        added = [self.detokenizer.push((token,)) for token in ids]
        self._last.extend(added)
        return "".join(added)

    def flush(self) -> str:
        """The rest, when the path ends here."""
        return self.detokenizer.flush()

    def tokens_of(self, end: str) -> int:
        """How many of the last tokens are just this text; 0 when it does not begin at a token of its own."""
        text = ""
        for count, piece in enumerate(reversed(self._last), start=1):
            text = piece + text
            if len(text) >= len(end):
                return count if text == end else 0
        return 0


class PathTexts:
    """Where the text of each node ends, for the calls that continue it.

    Args:
        stop: strings that end the text of a path for good.
    """

    def __init__(self, tree: Tree, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._tree = tree
        self._tokenizer = tokenizer
        self._stop = stop
        self._ends: dict[int, IncrementalDetokenizer] = {}

    def start(self, parent: int) -> Piece:
        """The text of a call that continues the path to `parent`."""
        return Piece(self._at(parent).copy())

    def keep(self, node: int, piece: Piece) -> None:
        """The path to this node may be continued."""
        self._ends[node] = piece.detokenizer

    def _at(self, node: int) -> IncrementalDetokenizer:
        if node not in self._ends:
            parent = self._tree[node].parent
            if parent is None or not self._tree[node].given:
                # A path that had ended: what follows is a text of its own.
                context = self._tree[ROOT].token_ids if parent is None else self._tree.path_ids(node)
                return IncrementalDetokenizer(self._tokenizer, context[-_CONTEXT:], self._stop)
            written = self._at(parent).copy()
            written.push(self._tree[node].token_ids)
            self._ends[node] = written
        return self._ends[node]
