"""Starts one sandboxed program, which then waits to be let go."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guards.sandbox.bubblewrap import arguments
from guards.sandbox.cgroups import CgroupParents
from guards.sandbox.errors import SandboxFailed
from guards.sandbox.limits import Program, SandboxLimits, encoded
from guards.sandbox.runtime import Runtime

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_OWN_MEMORY = 16 << 20
"""What bubblewrap and the kernel may use beside the program, in bytes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a sandbox have in common.

    Args:
        runtime: the staged files.
        seccomp: the system call filter.
        cgroups: where control groups are made, None where they cannot be.
        run_as: user and group of the program outside the sandbox; None for those of this process.
    """

    runtime: Runtime
    seccomp: bytes
    cgroups: CgroupParents | None
    run_as: int | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A started bubblewrap and this side of its pipes, all of them non-blocking.

    Args:
        process: bubblewrap outside the sandbox; it leads a process group of its own.
        status: bubblewrap's status lines.
        release: two bytes written here start the program, one for bubblewrap and one for the first code
            inside. Bubblewrap goes on also when nobody is left to write them; that code does not.
        stdout: the program's output.
        stderr: its error output, and bubblewrap's own.
    """

    process: subprocess.Popen[bytes]
    status: int
    release: int
    stdout: int
    stderr: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return self.status, self.release, self.stdout, self.stderr


def launch(setting: Setting, program: Program, limits: SandboxLimits, link: Sequence[int] = ()) -> Launched:
    """Start bubblewrap for `program`.

    Bubblewrap gets an empty environment, since the program could otherwise read there what it is not given.
    The caller's thread must outlive the run: the program is killed when the thread that started it ends.

    Args:
        link: further descriptors that the program inherits; it finds their numbers in `sys.argv`.

    Raises:
        SandboxFailed: it cannot be started.
    """
    ours: list[int] = []
    with contextlib.ExitStack() as theirs:

        def pipe(*, read: bool) -> int:
            ends = os.pipe()
            mine, other = ends if read else reversed(ends)
            os.set_blocking(mine, False)
            ours.append(mine)
            theirs.callback(os.close, other)
            return other

        def given(name: str, content: bytes) -> int:
            fd = _sealed(name, content)
            theirs.callback(os.close, fd)
            return fd

        try:
            status, block = pipe(read=True), pipe(read=False)
            gate = os.dup(block)
            theirs.callback(os.close, gate)
            stdout, stderr = pipe(read=True), pipe(read=True)
            stdin, seccomp = given("stdin", encoded(program.stdin)), given("seccomp", setting.seccomp)
            files = {f"/code/{name}": given("file", encoded(text)) for name, text in program.files.items()}
            files["/main.py"] = given("main", encoded(program.source))
            command = arguments(
                setting.runtime,
                limits,
                status_fd=status,
                block_fd=block,
                seccomp_fd=seccomp,
                files=files,
                extra=[str(fd) for fd in (gate, *link)],
            )
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={},
                cwd="/",
                pass_fds=(status, block, gate, seccomp, *files.values(), *link),
                start_new_session=True,
                umask=0o022,
                user=setting.run_as,
                group=setting.run_as,
                extra_groups=None if setting.run_as is None else [],
            )
        except (OSError, subprocess.SubprocessError) as exc:
            for fd in ours:
                os.close(fd)
            raise SandboxFailed(f"bubblewrap cannot be started: {exc}") from exc
    return Launched(process, *ours)


def memory_bound(limits: SandboxLimits) -> int:
    """Bytes that a run's control group may hold: the program, its files, and what carries them."""
    return limits.memory_bytes + limits.disk_bytes + _OWN_MEMORY


def _sealed(name: str, content: bytes) -> int:
    """A file in memory that nobody can change any more, to be read from its start."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in _parts(content, fd):
            os.write(fd, part)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def _parts(content: bytes, fd: int) -> Iterator[memoryview]:
    view = memoryview(content)
    while (done := os.lseek(fd, 0, os.SEEK_CUR)) < len(view):
        yield view[done:]
