"""The tree of a search: nodes own only their own token ids and point to their parent; the rest is derived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

ROOT = 0


@dataclass(slots=True)
class Node:
    """A run of tokens on a path.

    Args:
        id: its number in the tree; a parent's number is always the lower one.
        parent: the node it continues; None for the root, which holds the prompt.
        token_ids: its own tokens alone.
        text: the text its own tokens add.
        live: whether its KV is still wanted.
    """

    id: int
    parent: int | None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    live: bool = True


class Tree:
    """A prefix tree over token ids. The root (node 0) is the prompt.

    The unique live tokens are the search's KV footprint: a prefix that siblings share counts once. The root
    stays live until `release`, and is live again as soon as a node under it is.
    """

    def __init__(self, prompt_ids: tuple[int, ...]) -> None:
        self._nodes = [Node(ROOT, None, list(prompt_ids))]
        self._generated = 0
        self._live_tokens = len(prompt_ids)
        # Per node: itself, if live, and its children that have a live node at or below them.
        self._wanted = [1]

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __getitem__(self, node: int) -> Node:
        return self._nodes[node]

    @property
    def prompt_tokens(self) -> int:
        return len(self._nodes[ROOT].token_ids)

    @property
    def generated_tokens(self) -> int:
        """Tokens in all nodes but the root; a shared node counts once."""
        return self._generated

    def add(self, parent: int) -> int:
        """Add an empty node under `parent` and return its number.

        Raises:
            IndexError: there is no such parent.
        """
        if not 0 <= parent < len(self._nodes):
            raise IndexError(f"no node {parent}")
        self._nodes.append(Node(len(self._nodes), parent))
        self._wanted.append(0)
        self._want(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def extend(self, node: int, token_ids: tuple[int, ...], text: str) -> None:
        """Append tokens, and the text they add, to a node other than the root."""
        if node == ROOT:
            raise ValueError("the root is the prompt and does not grow")
        n = self._nodes[node]
        n.token_ids.extend(token_ids)
        n.text += text
        self._generated += len(token_ids)
        if self._wanted[node]:
            self._live_tokens += len(token_ids)

    def retire(self, node: int) -> None:
        """Mark a node's KV as no longer wanted. The root stays live, and so does what a live child needs."""
        if node == ROOT or not self._nodes[node].live:
            return
        self._nodes[node].live = False
        at: int | None = node
        while at is not None:
            self._wanted[at] -= 1
            if self._wanted[at]:
                return
            self._live_tokens -= len(self._nodes[at].token_ids)
            at = self._nodes[at].parent

    def wake(self, node: int) -> None:
        """Want a node's KV again, and with it that of its whole path."""
        if not self._nodes[node].live:
            self._nodes[node].live = True
            self._want(node)

    def release(self) -> None:
        """No KV is wanted any more, not even the prompt's."""
        for node in self._nodes:
            node.live = False
        self._wanted = [0] * len(self._nodes)
        self._live_tokens = 0

    def _want(self, node: int) -> None:
        at: int | None = node
        while at is not None:
            self._wanted[at] += 1
            if self._wanted[at] > 1:
                return
            self._live_tokens += len(self._nodes[at].token_ids)
            at = self._nodes[at].parent
        if not self._nodes[ROOT].live:
            self._nodes[ROOT].live = True
            self._wanted[ROOT] += 1

    def path(self, node: int) -> list[int]:
        """Node numbers from the root to `node`, both included."""
        out: list[int] = []
        at: int | None = node
        while at is not None:
            out.append(at)
            at = self._nodes[at].parent
        return out[::-1]

    def path_ids(self, node: int) -> tuple[int, ...]:
        """Token ids from the first prompt token to the end of `node`."""
        return tuple(t for n in self.path(node) for t in self._nodes[n].token_ids)

    def path_text(self, node: int) -> str:
        """Generated text from after the prompt to the end of `node`."""
        return "".join(self._nodes[n].text for n in self.path(node) if n != ROOT)

    def path_tokens(self, node: int) -> int:
        """Tokens on the path, the prompt included."""
        return sum(len(self._nodes[n].token_ids) for n in self.path(node))

    @property
    def live_tokens(self) -> int:
        """Unique tokens whose KV the search still wants: the live nodes and their ancestors, each once."""
        return self._live_tokens
