"""Child processes of the benchmark: started with a clean environment, logged, measured and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

import httpx
import psutil

import infra

ROOT = Path(infra.__file__).parent.parent
START_S = 300.0
GRACE_S = 10.0


class StartFailed(RuntimeError):
    """A server did not come up; the message names its log."""


def free_port() -> int:
    """A port of the loopback interface that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """Our environment for a child: one thread per numeric library, and no proxy before loopback."""
    loopback = "127.0.0.1,localhost"
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": loopback,
        "no_proxy": loopback,
        **more,
    }


@contextlib.asynccontextmanager
async def running(
    command: Sequence[str],
    log: Path,
    *,
    more: Mapping[str, str],
    folder: Path = ROOT,
    talks: bool = False,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child in a process group of its own; the whole group is ended on leaving.

    Args:
        log: takes its standard error, and its standard output unless it `talks`.
        more: environment variables over ours.
        folder: its working directory.
        talks: standard input and output are pipes.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=variables(more),
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else file,
            stderr=file,
            start_new_session=True,
            limit=2**22,
        )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    below = tree(process.pid)[1:]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
        # Not those that are our own children, which asyncio waits for.
        await asyncio.to_thread(psutil.wait_procs, below, GRACE_S)


async def answering(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    """Wait until a GET is answered with 200.

    Raises:
        StartFailed: the process ended, or `START_S` have passed.
    """
    until = time.monotonic() + START_S
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        while time.monotonic() < until and process.returncode is None:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.25)
    raise StartFailed(f"{url} did not answer; see {log}")


def tree(pid: int) -> list[psutil.Process]:
    """A living process and all below it."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that these processes and all below them have had."""
    total = 0.0
    for process in {p for pid in pids for p in tree(pid)}:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def idle_shares(children: Mapping[str, Iterable[int]], rest: str, seconds: float) -> dict[str, float]:
    """CPU seconds per second that each takes while nobody asks it anything.

    Args:
        children: process ids by name.
        rest: name for this process and all below it that belong to none of them.
    """
    pids = {name: list(ids) for name, ids in children.items()}

    def now() -> dict[str, float]:
        used = {name: cpu_seconds(ids) for name, ids in pids.items()}
        return {**used, rest: cpu_seconds([os.getpid()]) - sum(used.values())}

    before, began = now(), time.monotonic()
    await asyncio.sleep(seconds)
    after, passed = now(), time.monotonic() - began
    return {name: max(0.0, after[name] - before[name]) / passed for name in after}
