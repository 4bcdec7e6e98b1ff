"""Our end of a driver process: hand it a turn, read its replies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bench.peers.processes import running


class DriverEnded(RuntimeError):
    """The driver's process ended in the middle of a turn; the message names its log."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A turn's outcome: a reply per problem, seconds from first request to last answer, and PRM scores."""

    replies: tuple[Mapping[str, Any], ...]
    wall: float
    scores: int


class DriverProcess:
    """A driver that is up and idle between turns."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    async def run(self, turn: Mapping[str, Any], answered: Callable[[], None]) -> Ran:
        """Run one turn; `answered` is called for every problem.

        Raises:
            DriverEnded: its process ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(turn).encode() + b"\n")
        replies = []
        while not (reply := await self._read()).get("done"):
            replies.append(reply)
            answered()
        return Ran(tuple(replies), reply["wall"], reply["scores"])

    async def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DriverEnded(f"see {self._log}")
        reply: Mapping[str, Any] = json.loads(line)
        return reply


@contextlib.asynccontextmanager
async def driver(name: str, python: str | Path, logs: Path) -> AsyncIterator[DriverProcess]:
    """The driver `<name>_driver` of this package in the environment of that interpreter."""
    log = logs / f"{name}_driver.log"
    command = [str(python), "-m", f"infra.bench.peers.{name}_driver"]
    async with running(command, log, more={}, talks=True) as process:
        up = DriverProcess(process, log)
        await up._read()
        yield up
