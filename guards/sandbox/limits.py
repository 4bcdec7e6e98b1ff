"""What a program may use, what is run, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

MIB = 1 << 20
MAX_SOURCE_BYTES = 4 * MIB
"""Most bytes of a program with its further files."""
MAX_STDIN_BYTES = 16 * MIB

Ended = Literal["exited", "signal", "timeout", "cpu_limit", "killed_memory", "output_limit"]

_FILE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}(?:/[A-Za-z0-9_]{1,64}){0,4}\.[a-z]{1,8}")
_RANGES: dict[str, tuple[float, float]] = {
    "wall_s": (0.05, 3600.0),
    "cpu_s": (1, 3600),
    "memory_bytes": (64 * MIB, 1 << 40),
    "file_bytes": (4096, 1 << 40),
    "disk_bytes": (4096, 1 << 40),
    "output_bytes": (1, 64 * MIB),
    "processes": (1, 4096),
}


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Upper limits of one run; all of them hold for the run as a whole.

    Args:
        wall_s: seconds from the program's start until it is killed.
        cpu_s: seconds of processor time, whole.
        memory_bytes: address space of the program, which is one process. Its files are counted apart.
        file_bytes: size of one file.
        disk_bytes: size of the work directory, which lies in memory.
        output_bytes: size of standard output, and again of standard error.
        processes: kernel tasks: the program itself and its threads. It cannot start another process.

    Raises:
        ValueError: a value is outside its range; the text names the field and the range.
    """

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 512 * MIB
    file_bytes: int = 16 * MIB
    disk_bytes: int = 32 * MIB
    output_bytes: int = 256 * 1024
    processes: int = 16

    def __post_init__(self) -> None:
        for limit in fields(self):
            low, high = _RANGES[limit.name]
            value = getattr(self, limit.name)
            whole = limit.name == "wall_s" or isinstance(value, int)
            if isinstance(value, bool) or not whole or not low <= value <= high:
                kind = "a number" if limit.name == "wall_s" else "a whole number"
                raise ValueError(f"{limit.name} must be {kind} from {low:g} to {high:g}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program and what is given to it.

    Args:
        source: run as `__main__`.
        stdin: its standard input.
        files: further files, texts or bytes, read-only, by name below `/code`, from which modules, also
            compiled ones, can be imported.

    Raises:
        ValueError: something is too large or a name is not a plain relative path.
    """

    source: str
    stdin: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = sum(len(encoded(text)) for text in (self.source, *self.files.values()))
        if size > MAX_SOURCE_BYTES:
            raise ValueError(f"source and files must have at most {MAX_SOURCE_BYTES} bytes, not {size}")
        size = len(encoded(self.stdin))
        if size > MAX_STDIN_BYTES:
            raise ValueError(f"stdin must have at most {MAX_STDIN_BYTES} bytes, not {size}")
        if len(self.files) > 32:
            raise ValueError(f"files must be at most 32, not {len(self.files)}")
        for name in self.files:
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(f"files must have plain relative names such as a/b.py, not {name!r}")


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a run ended.

    Args:
        ended: `exited` by itself; `signal` killed by one of its own; or the limit that ended it:
            `timeout` (wall clock), `cpu_limit`, `killed_memory` (by the memory cgroup; a program that
            reaches `memory_bytes` gets a MemoryError instead), `output_limit`.
        exit_status: when `exited`. A status above 128 looks like a signal, as in a shell.
        signal: when `signal`.
        stdout: at most `output_bytes` of it.
        stderr: likewise.
        stdout_cut: there was more.
        stderr_cut: likewise.
        wall_s: from the program's start to its end.
        cpu_s: processor time, with the few milliseconds that setting up took.
    """

    ended: Ended
    exit_status: int | None
    signal: int | None
    stdout: str
    stderr: str
    stdout_cut: bool
    stderr_cut: bool
    wall_s: float
    cpu_s: float

    @property
    def succeeded(self) -> bool:
        """It exited by itself with status 0."""
        return self.ended == "exited" and self.exit_status == 0


def encoded(text: str | bytes) -> bytes:
    """The bytes of a text; a lone surrogate stays, and is then the program's syntax error, not ours."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
