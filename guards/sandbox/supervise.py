"""Watches over started programs until they have ended: output, limits, and the end itself."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Sequence

from guards.sandbox.cgroups import RunCgroup
from guards.sandbox.errors import SandboxFailed
from guards.sandbox.launch import Launched
from guards.sandbox.limits import Ended, SandboxLimits, SandboxResult

_START_TIMEOUT_S = 15.0
_END_TIMEOUT_S = 10.0
_CHUNK = 65536
# The kernel keeps the limit by counting ticks, and reports times that are measured: on a busy machine these
# differ. Process 1 of a namespace cannot kill itself, so SIGKILL comes from the limit or from the host.
_CPU_SHARE = 0.5
_MOST_STATUS = 4096


class Cancelled(Exception):
    """The caller wants the runs no more; they have been killed."""


class Run:
    """One started program. Its pipes are read as they fill, so that it costs this process no more than
    `output_bytes` for each of its two outputs.

    Args:
        launched: what was started; closed by `finish`.
        limits: the limits that are kept from outside, wall clock and output.
        cgroup: the group it is put into before it may start.
    """

    def __init__(self, launched: Launched, limits: SandboxLimits, cgroup: RunCgroup | None) -> None:
        self._launched = launched
        self._limits = limits
        self._cgroup = cgroup
        self._status = bytearray()
        self._output = {launched.stdout: bytearray(), launched.stderr: bytearray()}
        self._cut: set[int] = set()
        self._open = {launched.status, launched.stdout, launched.stderr}
        self._child: int | None = None  # pidfd of the program
        self._exit_code: int | None = None
        self._stopped: Ended | None = None
        self._failed: SandboxFailed | None = None
        self._started = time.monotonic()
        self._ended: float | None = None
        self.deadline = self._started + _START_TIMEOUT_S
        """When `overdue` must be called, on the monotonic clock."""

    @property
    def done(self) -> bool:
        """All its pipes are closed on the other side: there is no process left that holds one."""
        return not self._open

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have its pipes watched; the data of each key is this run."""
        for fd in self._open:
            selector.register(fd, selectors.EVENT_READ, self)

    def read(self, fd: int, selector: selectors.BaseSelector) -> None:
        """Take what a readable pipe holds."""
        data = os.read(fd, _CHUNK)
        if not data:
            selector.unregister(fd)
            self._open.discard(fd)
            self._ended = time.monotonic()
        elif fd == self._launched.status:
            self._read_status(data)
        else:
            self._read_output(fd, data)

    def overdue(self) -> None:
        """The deadline has passed.

        Raises:
            SandboxFailed: it was killed and did not end.
        """
        if self._stopped is not None or self._failed is not None:
            raise SandboxFailed("a program was killed and did not end")
        if self._child is None:
            self._fail(SandboxFailed(f"bubblewrap was not ready after {_START_TIMEOUT_S:g} s"))
        else:
            self.stop("timeout")

    def stop(self, why: Ended) -> None:
        """Kill it. Of several reasons the first counts."""
        if self._stopped is None:
            self._stopped = why
            self._kill()

    def finish(self) -> SandboxResult:
        """How it ended. Closes all that it held; to be called once, also when something was raised.

        Raises:
            SandboxFailed: it could not be set up, or something of it is still there.
        """
        with contextlib.ExitStack() as held:
            if self._cgroup is not None:
                held.callback(self._cgroup.remove)
            for fd in self._launched.descriptors:
                held.callback(os.close, fd)
            if self._child is not None:
                held.callback(os.close, self._child)
            if not self.done:
                self._kill()
            cpu_s = self._reap()
            if self._failed is not None:
                raise self._failed
            return self._result(cpu_s)

    def _result(self, cpu_s: float) -> SandboxResult:
        stderr = self._output[self._launched.stderr].decode("utf-8", "replace")
        ended, status, signal_number = self._stopped, None, None
        if ended is None:
            code = self._exit_code
            if code is None:
                raise SandboxFailed(f"the sandbox could not be set up: {stderr[-2000:].strip()}")
            if not 128 < code <= 128 + signal.NSIG:
                ended, status = "exited", code
            elif (
                code == 128 + signal.SIGKILL and self._cgroup is not None and self._cgroup.killed_for_memory()
            ):
                ended = "killed_memory"
            elif code == 128 + signal.SIGKILL and cpu_s >= _CPU_SHARE * self._limits.cpu_s:
                ended = "cpu_limit"
            else:
                ended, signal_number = "signal", code - 128
        return SandboxResult(
            ended=ended,
            exit_status=status,
            signal=signal_number,
            stdout=self._output[self._launched.stdout].decode("utf-8", "replace"),
            stderr=stderr,
            stdout_cut=self._launched.stdout in self._cut,
            stderr_cut=self._launched.stderr in self._cut,
            wall_s=(self._ended or time.monotonic()) - self._started,
            cpu_s=cpu_s,
        )

    def _read_output(self, fd: int, data: bytes) -> None:
        kept = self._output[fd]
        room = self._limits.output_bytes - len(kept)
        kept += data[:room]
        if len(data) > room:
            self._cut.add(fd)
            self.stop("output_limit")

    def _read_status(self, data: bytes) -> None:
        self._status += data
        if len(self._status) > _MOST_STATUS:
            return self._fail(SandboxFailed("bubblewrap's status is too long"))
        while b"\n" in self._status:
            line, _, rest = bytes(self._status).partition(b"\n")
            self._status[:] = rest
            try:
                status = json.loads(line)
                self._exit_code = status.get("exit-code", self._exit_code)
                if "child-pid" in status:
                    self._release(int(status["child-pid"]))
            except (ValueError, OSError) as exc:
                return self._fail(SandboxFailed(f"bubblewrap's status cannot be used: {exc}"))
            except SandboxFailed as exc:
                return self._fail(exc)
        return None

    def _release(self, pid: int) -> None:
        # Nobody has waited for the process yet, so the number is still its own.
        self._child = os.pidfd_open(pid)
        if self._cgroup is not None:
            self._cgroup.join(pid)
        os.write(self._launched.release, b"\0\0")
        self._started = time.monotonic()
        self.deadline = self._started + self._limits.wall_s

    def _fail(self, why: SandboxFailed) -> None:
        if self._failed is None:
            self._failed = why
            self._kill()

    def _kill(self) -> None:
        # The program first: bubblewrap then waits for it and ends, and no orphan is left to be waited for.
        self.deadline = time.monotonic() + _END_TIMEOUT_S
        with contextlib.suppress(ProcessLookupError):
            if self._child is not None:
                signal.pidfd_send_signal(self._child, signal.SIGKILL)
            else:
                os.killpg(self._launched.process.pid, signal.SIGKILL)

    def _reap(self) -> float:
        """Wait for bubblewrap, kill it if need be; seconds of processor time that it all took."""
        process = self._launched.process
        deadline = time.monotonic() + _END_TIMEOUT_S
        killed = False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_utime + usage.ru_stime
            if time.monotonic() > deadline:
                if killed:
                    raise SandboxFailed("bubblewrap was killed and did not end")
                os.killpg(process.pid, signal.SIGKILL)
                deadline, killed = time.monotonic() + _END_TIMEOUT_S, True
            time.sleep(0.0005)


def supervise(runs: Sequence[Run], wake: int) -> None:
    """Return when all runs are done.

    Args:
        wake: a descriptor that becomes readable when the caller gives up.

    Raises:
        Cancelled: the caller gave up.
        SandboxFailed: a run was killed and did not end.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(wake, selectors.EVENT_READ, None)
        for run in runs:
            run.register(selector)
        while waiting := [run for run in runs if not run.done]:
            left = min(run.deadline for run in waiting) - time.monotonic()
            for key, _ in selector.select(max(0.0, left)):
                if key.data is None:
                    raise Cancelled
                key.data.read(key.fd, selector)
            for run in waiting:
                if not run.done and time.monotonic() >= run.deadline:
                    run.overdue()
