"""A world whose model thinks: what it writes next follows from the text of its path alone."""

from __future__ import annotations

from dataclasses import dataclass

from search.contract import Call, Chunk, Event, Failed, Generate, Generated, Search
from search.extract import ThinkingMarkers, is_thinking
from search.ground import Phrase
from search.segments import THINK_AGAIN, THINK_CLOSE, THINK_OPEN
from tests.search.drive import PHRASES, World

MARKERS = ThinkingMarkers("<think>", "</think>")
THOUGHT = "hm "
THINK_PHRASES = {
    **PHRASES,
    THINK_OPEN: Phrase((60,), "<think>"),
    THINK_CLOSE: Phrase((61, 62), "\n</think>"),
    THINK_AGAIN: Phrase((63,), "Wait "),
}


@dataclass
class ThinkWorld(World):
    """One token a piece of text.

    Args:
        opens: it opens thinking itself.
        thoughts: so many pieces of thinking, then the closing mark; after each forced continuation anew.
        answer: the pieces that it writes outside thinking.
        markers: of its thinking.
        joined: the closing mark comes in one token with what is before it.
        loses: calls that are lost after their first piece.
    """

    opens: bool = True
    thoughts: int = 5
    answer: tuple[str, ...] = ("so ", "\\boxed{7}")
    markers: ThinkingMarkers = MARKERS
    joined: bool = False
    loses: int = 0

    def event_of(self, search: Search, call: Call) -> Event:
        if not isinstance(call, Generate):
            return super().event_of(search, call)
        text = "".join(search.tree[n].text for n in self.turn_path(search, call.node))
        node = search.tree[call.node]
        met = next((u for u in call.until if node.text.endswith(u)), None) if node.token_ids else None
        if met is not None:
            return Generated(call.id, "step", met, 0 if self.joined else 1)
        if self.loses and node.token_ids:
            self.loses -= 1
            return Failed(call.id, "engine lost")
        piece = self.piece(text)
        if piece is None:
            return Generated(call.id, "stop")
        if self.left[call.id] == 0:
            return Generated(call.id, "length")
        return Chunk(call.id, (100 + len(text) % 900,), piece)

    def piece(self, text: str) -> str | None:
        """The next token's text; None at the end."""
        if not text and self.opens and not self.markers.starts_inside:
            return self.markers.open
        if is_thinking(text, self.markers):
            stretch = text.rpartition("Wait ")[2].rpartition(self.markers.open)[2]
            if stretch.count(THOUGHT) >= self.thoughts:
                return self.markers.close
            last = self.joined and stretch.count(THOUGHT) == self.thoughts - 1
            return THOUGHT + self.markers.close if last else THOUGHT
        written = text.rpartition(self.markers.close)[2]
        for i in range(len(self.answer)):
            if written == "".join(self.answer[:i]):
                return self.answer[i]
        return None
