"""Which answers are mathematically the same, where their normal forms differ: asked once a pair."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from search.contract import CallId, Equate
from search.equivalence import is_number

MOST_GROUPS = 12
"""A new answer is compared with so many groups at the most; beyond them it is a group of its own."""


class Grouping:
    """Groups of equal answers, joined as comparisons come back.

    Two plain numbers are never compared: their normal forms say all. A comparison that fails joins nothing.

    Args:
        calls: gives call numbers.
        enabled: whether anything is compared at all.
    """

    def __init__(self, calls: Iterator[CallId], *, enabled: bool) -> None:
        self._calls = calls
        self._enabled = enabled
        self._answers: dict[str, str] = {}  # of each key, as the model wrote it first
        self._into: dict[str, str] = {}
        self._waiting: deque[tuple[str, str]] = deque()
        self._asked: dict[CallId, tuple[str, str]] = {}

    @property
    def pending(self) -> bool:
        """Whether groups may still be joined."""
        return bool(self._waiting or self._asked)

    @property
    def in_flight(self) -> list[CallId]:
        return sorted(self._asked)

    def key(self, key: str) -> str:
        """The group that a normal form belongs to now."""
        while key in self._into:
            key = self._into[key]
        return key

    def note(self, key: str, answer: str) -> None:
        """An answer was given; comparisons that this makes necessary wait to be asked."""
        if not self._enabled or key in self._answers:
            return
        others = [k for k in self._answers if k not in self._into and not (is_number(k) and is_number(key))]
        self._answers[key] = answer
        self._waiting.extend((other, key) for other in others[:MOST_GROUPS])

    def ask(self, slots: int) -> list[Equate]:
        """Comparisons to start now."""
        asked: list[Equate] = []
        while self._waiting and len(asked) < slots:
            first, second = self._waiting.popleft()
            call = Equate(next(self._calls), self._answers[first], self._answers[second])
            self._asked[call.id] = (first, second)
            asked.append(call)
        return asked

    def tell(self, call: CallId, same: bool | None) -> tuple[str, str] | None:
        """A comparison came back. Returns the group that was joined to another, and that other one.

        Comparisons that a join makes needless wait no longer.
        """
        pair = self._asked.pop(call, None)
        if pair is None or not same:
            return None
        first, second = sorted(map(self.key, pair), key=list(self._answers).index)
        if first == second:
            return None
        self._into[second] = first
        # At once: whoever waits for comparisons would else wait for some that are never asked.
        self._waiting = deque(p for p in self._waiting if self.key(p[0]) != self.key(p[1]))
        return second, first

    def stop(self) -> None:
        """Nothing more is asked or joined."""
        self._waiting.clear()
        self._asked.clear()
