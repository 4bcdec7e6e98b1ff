"""Notice at once, and without polling, that a child process died."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable


class ChildWatch:
    """Calls `on_death(pid)` in the event loop when one of the processes ends.

    It waits on a pidfd (Linux 5.3) per process, so that it costs nothing while they live.
    """

    def __init__(self, pids: Iterable[int], on_death: Callable[[int], None]) -> None:
        """Start watching.

        Raises:
            ProcessLookupError: one of them is gone already.
        """
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        self._files: dict[int, int] = {}
        for pid in pids:
            file = os.pidfd_open(pid)
            self._files[pid] = file
            self._loop.add_reader(file, self._ended, pid)

    def _ended(self, pid: int) -> None:
        self._forget(pid)
        self._on_death(pid)

    def _forget(self, pid: int) -> None:
        file = self._files.pop(pid)
        self._loop.remove_reader(file)
        os.close(file)

    def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        for pid in list(self._files):
            self._forget(pid)
