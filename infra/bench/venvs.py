"""Environments for packages that do not go with ours, such as the peers; made anew when their pins change."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

import infra

REQUIREMENTS = Path(infra.__file__).parent / "requirements" / "peers"
NO_DEPS = "--no-deps"
"""A requirement file with the line `# pip: --no-deps` is installed without what its packages require."""


class InstallFailed(RuntimeError):
    """The packages of an environment could not be installed."""


def environment(name: str, folder: Path) -> Path:
    """The interpreter of an environment; made if need be, which takes a minute.

    Args:
        name: of the requirement file, without its suffix.
        folder: where environments lie.

    Raises:
        FileNotFoundError: there is no such requirement file.
        InstallFailed: pip failed; the message has what it said.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    pins = requirements.read_text(encoding="utf-8")
    here = folder / name
    python = here / "bin" / "python"
    stamp = here / ".installed"
    wanted = hashlib.sha256((pins + sys.version).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    print(f"making the environment of {name}", flush=True)
    venv.create(here, clear=True, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    extra = [NO_DEPS] if f"# pip: {NO_DEPS}" in pins.splitlines() else []
    done = subprocess.run([*pip, *extra, "-r", str(requirements)], capture_output=True, text=True)
    if done.returncode:
        raise InstallFailed(f"pip could not make the environment of {name}:\n{done.stderr}")
    stamp.write_text(wanted)
    return python


def packages(python: Path) -> Path:
    """Where the packages of an environment lie."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parent.parent / "lib" / version / "site-packages"
