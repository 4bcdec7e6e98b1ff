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
        given: the search wrote its tokens itself; no model did.
    """

    id: int
    parent: int | None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    live: bool = True
    given: bool = False


class Tree:
    """A prefix tree over token ids. The root (node 0) is the prompt.

    The unique live tokens are the search's KV footprint: a prefix that siblings share counts once. The root
    stays live until `release`, and is live again as soon as a node under it is.
    """

    def __init__(self, prompt_ids: tuple[int, ...]) -> None:
        self._nodes = [Node(ROOT, None, list(prompt_ids))]
        self._generated = 0
        self._given = 0
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
        """Tokens that models wrote, in all nodes; a shared node counts once."""
        return self._generated

    @property
    def given_tokens(self) -> int:
        """Tokens that the search wrote itself after the prompt."""
        return self._given

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

    def add_given(self, parent: int, token_ids: tuple[int, ...], text: str) -> int:
        """Add a node of tokens that the search writes itself.

        Raises:
            IndexError: there is no such parent.
        """
        node = self.add(parent)
        self._nodes[node].given = True
        self._nodes[node].token_ids.extend(token_ids)
        self._nodes[node].text = text
        self._given += len(token_ids)
        self._live_tokens += len(token_ids)
        return node

    def take_back(self, node: int) -> None:
        """Remove the last node of all, which `add_given` has just added: it has never been.

        Raises:
            ValueError: it is not the last one, or not a given one.
        """
        if node != len(self._nodes) - 1 or not self._nodes[node].given:
            raise ValueError(f"node {node} is not a given one that was just added")
        self.retire(node)
        self._given -= len(self._nodes.pop().token_ids)
        self._wanted.pop()

    def cut(self, node: int, tokens: int, chars: int) -> int:
        """Take the last `tokens` tokens, and the last `chars` characters, off a node that has no children.

        They stay in the tree as a dead child of it, since they were generated. Returns that child.

        Raises:
            ValueError: the node has not so many of its own, or has children.
        """
        n = self._nodes[node]
        if node == ROOT or not 0 < tokens <= len(n.token_ids) or not 0 <= chars <= len(n.text):
            raise ValueError(f"cannot cut {tokens} tokens and {chars} characters off node {node}")
        if any(other.parent == node for other in self._nodes[node + 1 :]):
            raise ValueError(f"node {node} has children")
        tail = Node(len(self._nodes), node, n.token_ids[-tokens:], n.text[len(n.text) - chars :], live=False)
        del n.token_ids[-tokens:]
        n.text = n.text[: len(n.text) - chars]
        self._nodes.append(tail)
        self._wanted.append(0)
        if self._wanted[node]:
            self._live_tokens -= tokens
        return tail.id

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

    def wake_cost(self, node: int) -> int:
        """Tokens by which `live_tokens` would grow if the KV of `node` and its path were wanted again."""
        cost = 0
        at: int | None = node
        while at is not None and not self._wanted[at]:
            cost += len(self._nodes[at].token_ids)
            at = self._nodes[at].parent
        return cost

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

    def path_text(self, node: int, begin: int = ROOT) -> str:
        """Text from after `begin`, a node of the path, to the end of `node`."""
        return "".join(self._nodes[n].text for n in self.path_after(begin, node))

    def path_after(self, begin: int, node: int) -> list[int]:
        """Node numbers of the path to `node` that come after `begin`.

        Raises:
            ValueError: `begin` is not on the path.
        """
        out: list[int] = []
        at: int | None = node
        while at != begin:
            if at is None:
                raise ValueError(f"node {begin} is not on the path to node {node}")
            out.append(at)
            at = self._nodes[at].parent
        return out[::-1]

    def path_tokens(self, node: int) -> int:
        """Tokens on the path, the prompt included."""
        return sum(len(self._nodes[n].token_ids) for n in self.path(node))

    @property
    def live_tokens(self) -> int:
        """Unique tokens whose KV the search still wants: the live nodes and their ancestors, each once."""
        return self._live_tokens
