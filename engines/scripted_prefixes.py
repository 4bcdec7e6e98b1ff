"""The prefix cache of a scripted engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_REMEMBERED_PATHS = 4096


class PrefixMemory:
    """The last paths of each salt."""

    def __init__(self) -> None:
        self._paths: dict[str | None, deque[tuple[int, ...]]] = {}

    def add(self, path: tuple[int, ...], salt: str | None) -> None:
        self._paths.setdefault(salt, deque(maxlen=_REMEMBERED_PATHS)).append(path)

    def shared(self, ids: tuple[int, ...], salt: str | None) -> int:
        """Tokens of the longest prefix that is also one of a remembered path, but never all of `ids`."""
        longest = max((_common(ids, path) for path in self._paths.get(salt, ())), default=0)
        return min(longest, len(ids) - 1)

    def clear(self) -> None:
        self._paths.clear()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))
