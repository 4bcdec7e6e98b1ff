"""Child processes that end when this process ends, however it ends (prctl(2), PR_SET_PDEATHSIG)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

# Runs between fork and the program in a process of its own, because Python code in a `preexec_fn` can
# deadlock when the parent has threads. The death signal outlives exec. The parent may have died before
# prctl was called, hence the look at getppid.
_SHIM = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGTERM), 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is already gone")
os.umask(0o077)
os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn_bound(
    arguments: Sequence[str],
    *,
    cwd: Path,
    output: Path,
    pass_fds: Sequence[int] = (),
    on_exit: Callable[[int], None],
) -> subprocess.Popen[bytes]:
    """Start a program that gets SIGTERM when this process dies, in a session of its own, umask 077.

    It is forked from a thread that lives as long as the program does, because the kernel sends the death
    signal when the *thread* that forked ends: a short-lived worker thread must not fork it.

    Args:
        arguments: absolute path of the program, then its arguments.
        cwd: its working directory.
        output: file that takes its stdout and stderr; truncated first.
        pass_fds: file descriptors it inherits.
        on_exit: called in that thread with the exit code (negative: the signal) when the program ends.

    Raises:
        OSError: it could not be started, or this is not Linux.
    """
    if sys.platform != "linux":
        raise OSError("processes can be bound to their parent on Linux only")
    started: list[subprocess.Popen[bytes]] = []
    failed: list[OSError] = []
    ready = threading.Event()

    def own() -> None:
        try:
            with output.open("wb") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    pass_fds=tuple(pass_fds),
                    start_new_session=True,
                )
            started.append(process)
        except OSError as exc:
            failed.append(exc)
            return
        finally:
            ready.set()
        on_exit(process.wait())

    threading.Thread(target=own, name="bound-process", daemon=True).start()
    ready.wait()
    if failed:
        raise failed[0]
    return started[0]
