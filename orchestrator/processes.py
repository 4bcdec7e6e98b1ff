"""Ends every process that a server started, whoever its parent was when it was lost.

Ray's workers and SGLang's children outlive a parent that is killed. As a child subreaper (prctl(2),
PR_SET_CHILD_SUBREAPER) the server inherits such orphans, so that they stay in its own process tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants that lose theirs.

    Raises:
        OSError: the kernel refused, or this is not Linux.
    """
    if sys.platform != "linux":
        raise OSError("orphans can be adopted on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(*, spare: Iterable[int] = ()) -> list[psutil.Process]:
    """Living processes below this one, without those whose ids are in `spare`."""
    spared = set(spare)
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.pid not in spared and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_descendants(*, spare: Iterable[int] = (), grace_s: float = 3.0) -> int:
    """End all processes below this one: SIGTERM, then SIGKILL after `grace_s`, until none is left.

    Args:
        spare: process ids to leave alone.
        grace_s: seconds between the two signals.

    Returns:
        How many there were.
    """
    seen: set[int] = set()
    began = time.monotonic()
    while processes := descendants(spare=spare):
        waited = time.monotonic() - began
        if waited > 10 * grace_s:
            break
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if waited > grace_s:
                    process.kill()
                elif process.pid not in seen:
                    process.terminate()
        seen.update(p.pid for p in processes)
        psutil.wait_procs(processes, timeout=0.1)
    _reap()
    return len(seen)


async def collect_orphans(every_s: float = 30.0) -> None:
    """Collect adopted processes that have ended, for as long as the task lives.

    Only those that were dead at the look before as well: whoever started a process and waits for it comes
    first.
    """
    before: set[int] = set()
    while True:
        await asyncio.sleep(every_s)
        dead = set()
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    dead.add(process.pid)
        for pid in dead & before:
            _collect(pid)
        before = dead


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _reap() -> None:
    """Collect zombies that came to us as orphans; ends when no child is waiting to be collected."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    while not task.done():
        # Again and again, since a library on the way may take a cancellation for a fault of its own.
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
