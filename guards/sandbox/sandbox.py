"""The sandbox as the rest of the service sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from guards.sandbox.bubblewrap import find_bubblewrap
from guards.sandbox.cgroups import find_cgroups
from guards.sandbox.errors import SandboxFailed, SandboxUnavailable
from guards.sandbox.launch import Setting, launch, memory_bound
from guards.sandbox.limits import Program, SandboxLimits, SandboxResult
from guards.sandbox.probe import check_isolation
from guards.sandbox.runtime import stage_runtime
from guards.sandbox.seccomp import seccomp_filter
from guards.sandbox.supervise import Run, supervise
from guards.sandbox.wake import Wake

MAX_CONCURRENCY = 256
RUN_AS = 65_533
"""User and group of programs when this process is root: given to nobody by Debian or systemd."""

T = TypeVar("T")


class Sandbox:
    """Runs programs apart from everything else. `probe` must have passed before the first run.

    Args:
        concurrency: runs at the same time; further ones wait. Linked programs count as one.
        limits: limits of a run that brings none of its own.
        directory: where the copy of the interpreter is put; see `stage_runtime`.
        run_as: user and group id of programs outside the sandbox when this process is root. Otherwise they
            run as the user of this process.

    Raises:
        ValueError: an argument is outside its range; the text names it.
    """

    def __init__(
        self,
        *,
        concurrency: int = 2,
        limits: SandboxLimits | None = None,
        directory: Path | None = None,
        run_as: int = RUN_AS,
    ) -> None:
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency must be from 1 to {MAX_CONCURRENCY}, not {concurrency}")
        if not 1 <= run_as < 2**32 - 1:
            raise ValueError(f"run_as must be a user id other than root's, not {run_as}")
        self._limits = limits or SandboxLimits()
        self._directory = directory
        self._run_as = run_as
        # A thread for each run: bubblewrap dies with the thread that started it, and it is the same under
        # every event loop.
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="sandbox")
        self._setting: Setting | None = None
        self._missing = "it was not probed"

    @property
    def bounds(self) -> tuple[str, ...]:
        """What control groups bound in addition to the limits of each process: of `pids` and `memory`.

        Empty before `probe`, and where this process may not make control groups.
        """
        groups = self._setting.cgroups if self._setting is not None else None
        return groups.bounds if groups is not None else ()

    async def probe(self) -> None:
        """Prepare the sandbox and check, by running programs in it, that it isolates as it must.

        Raises:
            SandboxUnavailable: something is missing; `run` goes on refusing.
        """
        try:
            await self._in_thread(self._prepare)
        except SandboxUnavailable as exc:
            self._missing = str(exc)
            raise

    async def run(
        self, program: str | Program, *, stdin: str = "", limits: SandboxLimits | None = None
    ) -> SandboxResult:
        """Run a program. When the caller is cancelled, it is killed.

        Args:
            program: Python source, or a `Program`, which has its own standard input.
            stdin: standard input of a program given as source.
            limits: of this run, instead of the sandbox's.

        Raises:
            SandboxUnavailable: the probe has not passed.
            SandboxFailed: this run could not be set up or ended.
            ValueError: the program or its input is too large, or both it and `stdin` bring an input.
        """
        if isinstance(program, str):
            program = Program(program, stdin)
        elif stdin:
            raise ValueError("stdin must be empty beside a Program, which has its own")
        (result,) = await self._start([program], limits)
        return result

    async def run_linked(
        self, first: Program, second: Program, *, limits: SandboxLimits | None = None
    ) -> tuple[SandboxResult, SandboxResult]:
        """Run two programs, apart from each other but for a pipe each way; each has the limits for itself.

        `sys.argv[1:]` of each are the numbers of the descriptors to read from and to write to. When one
        ends, the other reads the end of file.

        Raises:
            As `run`.
        """
        one, other = await self._start([first, second], limits)
        return one, other

    async def close(self) -> None:
        """Wait for the runs that go on and remove what was prepared. No run is accepted any more."""
        setting, self._setting, self._missing = self._setting, None, "it was closed"
        await asyncio.to_thread(self._threads.shutdown)
        if setting is not None:
            await asyncio.to_thread(setting.runtime.remove)

    async def _start(self, programs: Sequence[Program], limits: SandboxLimits | None) -> list[SandboxResult]:
        setting = self._setting
        if setting is None:
            raise SandboxUnavailable(f"the sandbox cannot be used: {self._missing}")
        chosen = limits or self._limits
        return await self._in_thread(lambda wake: run_programs(setting, programs, chosen, wake))

    def _prepare(self, wake: int) -> None:
        if self._setting is not None:
            return
        if sys.platform != "linux":
            raise SandboxUnavailable("the sandbox needs Linux")
        seccomp = seccomp_filter(platform.machine())
        runtime = stage_runtime(find_bubblewrap(), self._directory)
        run_as = self._run_as if os.geteuid() == 0 else None
        try:
            self._setting = check_isolation(
                Setting(runtime, seccomp, find_cgroups(), run_as),
                lambda setting, program, limits: run_programs(setting, [program], limits, wake)[0],
            )
        except BaseException:
            runtime.remove()
            raise

    async def _in_thread(self, work: Callable[[int], T]) -> T:
        """Run blocking work that gives up when the descriptor it is given can be read."""
        wake = Wake()
        try:
            job = self._threads.submit(work, wake.descriptor)
        except RuntimeError as exc:
            wake.close()
            raise SandboxUnavailable(f"the sandbox cannot be used: {self._missing}") from exc
        job.add_done_callback(lambda _: wake.close())
        outcome = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not job.cancel():
                wake.set()
                await asyncio.wait([outcome])
            raise
        finally:
            # Of a run that nobody waits for, nobody asks how it ended.
            outcome.add_done_callback(lambda done: done.cancelled() or done.exception())


def run_programs(
    setting: Setting, programs: Sequence[Program], limits: SandboxLimits, wake: int
) -> list[SandboxResult]:
    """Run one program, or two that are linked, in this thread.

    Args:
        wake: becomes readable when the caller gives up.

    Raises:
        Cancelled: the caller gave up.
        SandboxFailed: a run could not be set up or ended.
    """
    links = _links(len(programs))
    runs: list[Run] = []
    try:
        try:
            for program, link in zip(programs, links, strict=True):
                cgroup = None
                if setting.cgroups is not None:
                    cgroup = setting.cgroups.make(tasks=limits.processes, memory_bytes=memory_bound(limits))
                try:
                    launched = launch(setting, program, limits, link)
                except BaseException:
                    if cgroup is not None:
                        cgroup.remove()
                    raise
                runs.append(Run(launched, limits, cgroup))
        finally:
            for fd in {fd for link in links for fd in link}:
                os.close(fd)
        supervise(runs, wake)
    except BaseException:
        # What went wrong first counts; that a killed program gave no status is no news.
        with contextlib.suppress(SandboxFailed):
            _finish(runs)
        raise
    return _finish(runs)


def _links(programs: int) -> list[tuple[int, ...]]:
    if programs == 1:
        return [()]
    (read_first, write_second), (read_second, write_first) = os.pipe(), os.pipe()
    return [(read_first, write_first), (read_second, write_second)]


def _finish(runs: list[Run]) -> list[SandboxResult]:
    """Finish all, whatever goes wrong with one of them."""
    if not runs:
        return []
    try:
        first = runs[0].finish()
    finally:
        rest = _finish(runs[1:])
    return [first, *rest]
