"""How many more children each step of a tree is to get, and which one is served next."""

from __future__ import annotations

from heapq import heappop, heappush

from search.step import ROOT_STEP, Root, Step

_ROOT = -1


class Demand:
    """Children that are wanted and not begun.

    The deepest parent is served first, so that a search has an answer early; of equal depths the one that was
    asked for first.
    """

    def __init__(self) -> None:
        self._unmet: dict[int, int] = {}
        self._parents: dict[int, Step | Root] = {}
        self._order: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._queued: set[int] = set()

    def want(self, parent: Step | Root, count: int = 1) -> None:
        """`parent` is to get so many children more than it was."""
        at = _ROOT if isinstance(parent, Root) else parent.index
        self._parents[at] = parent
        self._order.setdefault(at, len(self._order))
        self._unmet[at] = self._unmet.get(at, 0) + count
        self._queue(at)

    def wants(self, parent: Step) -> bool:
        """Whether `parent` is to get more children."""
        return self._unmet.get(parent.index, 0) > 0

    def next(self) -> Step | Root | None:
        """The parent to serve next; None when no child is wanted."""
        while self._heap:
            at = self._heap[0][2]
            if self._unmet[at] > 0:
                return self._parents[at]
            heappop(self._heap)
            self._queued.discard(at)
        return None

    def begun(self, child: Step) -> None:
        """A child that was wanted is under way."""
        self._unmet[_parent_of(child)] -= 1

    def undone(self, child: Step) -> None:
        """A child that was begun has never been."""
        at = _parent_of(child)
        self._unmet[at] += 1
        self._queue(at)

    def again(self, child: Step) -> None:
        """A child that failed is to be drawn again."""
        self.want(ROOT_STEP if child.parent is None else child.parent)

    def _queue(self, at: int) -> None:
        if at not in self._queued and self._unmet[at] > 0:
            parent = self._parents[at]
            depth = -1 if isinstance(parent, Root) else parent.depth
            heappush(self._heap, (-depth, self._order[at], at))
            self._queued.add(at)


def _parent_of(child: Step) -> int:
    return _ROOT if child.parent is None else child.parent.index
