"""One worker process for mathematics, as the pool sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.verifiers.math_wire import MOST_BYTES, WireError, pack, unpack

_ROOT = Path(__file__).parents[2]
_RUN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from orchestrator.verifiers.math_worker import main; main()"
)
_START_S = 60.0
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """Whether two answers are the same.

    Args:
        verdict: `same`, `different`, `timeout`, or `error`: not known.
        reason: why, where it is not `same` or `different`. It does not quote the answers.
    """

    verdict: Literal["same", "different", "timeout", "error"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MathLimits:
    """What one comparison, and the process that makes it, may use.

    Args:
        limit_s: seconds on the clock, 0.01..60. Waiting for a free process and starting one are not in it.
        memory_bytes: memory beyond what the libraries take, 64 MiB..16 GiB.
        recycle_after: comparisons after which the calculating process is replaced, 1..100,000.

    Raises:
        ValueError: a value is out of its range.
    """

    limit_s: float = 2.0
    memory_bytes: int = 512 << 20
    recycle_after: int = 200

    def __post_init__(self) -> None:
        if not 0.01 <= self.limit_s <= 60:
            raise ValueError(f"limit_s must be a number of seconds in 0.01..60, not {self.limit_s!r}")
        if not 64 << 20 <= self.memory_bytes <= 16 << 30:
            raise ValueError(f"memory_bytes must be in {64 << 20}..{16 << 30}, not {self.memory_bytes!r}")
        if not 1 <= self.recycle_after <= 100_000:
            raise ValueError(f"recycle_after must be in 1..100000, not {self.recycle_after!r}")


class MathProcess:
    """A worker process, started when it is first needed and again whenever it is gone.

    It serves one caller at a time. One that is cancelled leaves it usable: the calculation is called off, and
    the next caller skips its answer.
    """

    def __init__(self, limits: MathLimits) -> None:
        self._limits = limits
        self._process: Process | None = None
        self._ready = False
        self._closed = False
        self._last = 0

    @property
    def pid(self) -> int | None:
        """The process id, while it lives."""
        return None if self._process is None else self._process.pid

    async def ask(self, first: str, second: str, *, any_order: bool, limit_s: float) -> MathVerdict:
        """Have two answers compared, within the least of `limit_s` and the process's own time limit."""
        self._last += 1
        limit_s = min(limit_s, self._limits.limit_s)
        request = {
            "id": self._last, "first": first, "second": second, "any_order": any_order, "limit_s": limit_s
        }  # fmt: skip
        usable = False
        try:
            process = await self._started()
            if process is None:
                return MathVerdict("error", "the worker process could not be started")
            async with asyncio.timeout(limit_s + _GRACE_S):
                verdict = await self._exchange(process, request)
            usable = True
            return verdict
        except TimeoutError:
            return MathVerdict("timeout", "the worker process did not answer")
        except (OSError, ValueError, WireError) as exc:
            return MathVerdict("error", f"the worker process failed ({type(exc).__name__})")
        except asyncio.CancelledError:
            self._call_off(self._last)
            usable = True
            raise
        finally:
            if not usable:
                self._kill()

    async def close(self) -> None:
        """End the process, wait until it is gone, and start none any more."""
        self._closed = True
        process = self._process
        if process is None:
            return
        if self._ready:
            assert process.stdin is not None
            process.stdin.close()  # the worker then ends its own child first
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await process.wait()
        self._kill()
        await process.wait()

    async def _started(self) -> Process | None:
        if self._process is None or self._process.returncode is not None:
            limits = self._limits
            settings = {"memory_bytes": limits.memory_bytes, "recycle_after": limits.recycle_after}
            self._ready = False
            self._process = None if self._closed else await _start(settings)
        if self._closed:
            self._kill()
        process = self._process
        if process is not None and not self._ready:
            assert process.stdout is not None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_S):
                    line = await process.stdout.readline()
                    self._ready = bool(line) and unpack(line).get("ready") is True
        return process if self._ready else None

    async def _exchange(self, process: Process, request: dict[str, Any]) -> MathVerdict:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pack(request))
        await process.stdin.drain()
        while True:
            line = await process.stdout.readline()
            if not line:
                return MathVerdict("error", "the worker process ended")
            reply = unpack(line)
            if reply.get("id") == request["id"]:  # answers before it are of callers that left
                return MathVerdict(reply["verdict"], reply["reason"])

    def _call_off(self, number: int) -> None:
        if self._process is not None and self._ready:
            assert self._process.stdin is not None
            self._process.stdin.write(pack({"cancel": number}))

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


async def _start(settings: dict[str, int]) -> Process:
    # The kernel ends the worker when the thread that forked it ends: that is the loop's own thread.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-c", _RUN, str(_ROOT), json.dumps({**settings, "parent": os.getpid()})),
        stdin=PIPE,
        stdout=PIPE,
        limit=MOST_BYTES,
        env={},
        cwd="/",
        start_new_session=True,
    )
