"""A control group of its own for each run: a second bound on tasks and memory, where the host allows it.

Both versions of control groups are served. Version 2 needs a parent that has handed its `memory` and `pids`
controllers on (a delegated group). Memory of the kernel on the program's behalf, such as the inodes of its
files, counts only here.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from guards.sandbox.errors import SandboxFailed

_NAME = re.compile(r"pondera-(\d+)-[0-9a-f]+")
_REMOVE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Parent:
    """A directory in which control groups can be made.

    Args:
        directory: its path.
        limits: names of the files that take (tasks, memory, memory with swap), empty where it has none.
        events: the file that counts processes killed for want of memory.
    """

    directory: Path
    tasks: str = ""
    memory: str = ""
    swap: tuple[str, str] = ("", "")
    events: str = ""


@dataclass(frozen=True, slots=True)
class CgroupParents:
    """Where the groups of runs are made, one directory (version 2) or one for each controller (version 1)."""

    parents: tuple[Parent, ...]

    @property
    def bounds(self) -> tuple[str, ...]:
        """What they bound: `pids`, `memory`."""
        names = ("pids", any(p.tasks for p in self.parents)), ("memory", any(p.memory for p in self.parents))
        return tuple(name for name, there in names if there)

    def make(self, *, tasks: int, memory_bytes: int) -> RunCgroup:
        """A fresh group with these limits.

        Raises:
            SandboxFailed: it cannot be made.
        """
        name = f"pondera-{os.getpid()}-{secrets.token_hex(6)}"
        group = RunCgroup(tuple((parent, parent.directory / name) for parent in self.parents))
        try:
            for parent, directory in group.places:
                directory.mkdir()
                if parent.tasks:
                    (directory / parent.tasks).write_text(str(tasks))
                if parent.memory:
                    (directory / parent.memory).write_text(str(memory_bytes))
                    file, value = parent.swap
                    if (directory / file).exists():
                        (directory / file).write_text(value or str(memory_bytes))
        except OSError as exc:
            group.remove()
            raise SandboxFailed(f"no control group can be made: {exc}") from exc
        return group


@dataclass(frozen=True, slots=True)
class RunCgroup:
    """The group of one run."""

    places: tuple[tuple[Parent, Path], ...]

    def join(self, pid: int) -> None:
        """Put a process in.

        Raises:
            SandboxFailed: it cannot be moved.
        """
        try:
            for _, directory in self.places:
                (directory / "cgroup.procs").write_text(str(pid))
        except OSError as exc:
            raise SandboxFailed(f"the program cannot be put into its control group: {exc}") from exc

    def killed_for_memory(self) -> bool:
        """Whether the kernel killed something of it for want of memory."""
        for parent, directory in self.places:
            if parent.events:
                with contextlib.suppress(OSError):
                    counts = re.search(
                        r"^oom_kill (\d+)", (directory / parent.events).read_text(), re.MULTILINE
                    )
                    return counts is not None and int(counts.group(1)) > 0
        return False

    def remove(self) -> None:
        """Remove it once its processes are gone, which may take the kernel a moment.

        Raises:
            SandboxFailed: it still holds processes after some seconds.
        """
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        for _, directory in self.places:
            while directory.exists():
                try:
                    directory.rmdir()
                except OSError as exc:
                    if time.monotonic() > deadline:
                        raise SandboxFailed(f"the control group of a run stays: {exc}") from exc
                    time.sleep(0.002)


def find_cgroups(proc: Path = Path("/proc/self")) -> CgroupParents | None:
    """The groups below which this process can make its own, None where it cannot.

    Empty groups that a killed service left there are removed.

    Args:
        proc: where to read `mountinfo` and `cgroup`.
    """
    paths: dict[str, str] = {}
    for line in _lines(proc / "cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    parents: list[Parent] = []
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ")[:3]
        for parent in _candidates(kind, options.split(","), paths, root, Path(point)):
            taken = {name for p in parents for name in (p.tasks and "tasks", p.memory and "memory") if name}
            offers = {name for name in (parent.tasks and "tasks", parent.memory and "memory") if name}
            if not offers & taken and _can_make(parent.directory):
                parents.append(parent)
    return CgroupParents(tuple(parents)) if parents else None


def _candidates(
    kind: str, options: list[str], paths: dict[str, str], root: str, point: Path
) -> Iterable[Parent]:
    if kind == "cgroup" and "pids" in options and "pids" in paths:
        yield Parent(_below(point, root, paths["pids"]), tasks="pids.max")
    elif kind == "cgroup" and "memory" in options and "memory" in paths:
        yield Parent(
            _below(point, root, paths["memory"]),
            memory="memory.limit_in_bytes",
            swap=("memory.memsw.limit_in_bytes", ""),
            events="memory.oom_control",
        )
    elif kind == "cgroup2" and "" in paths:
        own = _below(point, root, paths[""])
        # A group that holds processes cannot hand controllers on; the one above it may.
        for directory in (own, own.parent) if own != point else (own,):
            handed_on = " ".join(_lines(directory / "cgroup.subtree_control")).split()
            if {"memory", "pids"} <= set(handed_on):
                yield Parent(directory, "pids.max", "memory.max", ("memory.swap.max", "0"), "memory.events")


def _below(point: Path, root: str, path: str) -> Path:
    # The mount shows the tree from `root` on; in a namespace the own path may lie outside of it.
    if path == root or ".." in path:
        return point
    return point / path.removeprefix(root if root.endswith("/") else root + "/").lstrip("/")


def _can_make(directory: Path) -> bool:
    for left in directory.glob("pondera-*"):
        name = _NAME.fullmatch(left.name)
        if name is not None and not Path("/proc", name.group(1)).exists():
            with contextlib.suppress(OSError):
                left.rmdir()
    trial = directory / f"pondera-{os.getpid()}-{secrets.token_hex(6)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
