"""The files of an embedded store: its directory, its lock and the path of its unix socket."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

# sockaddr_un.sun_path holds 108 bytes with its NUL on Linux.
_MAX_SOCKET_PATH = 107


class StoreFiles:
    """`<state_dir>/valkey`, mode 0700, and what lies in it.

    The lock file is the truth about who runs: the server process inherits the locked descriptor, so the
    lock is held exactly as long as a server lives, whoever started it.
    """

    def __init__(self, state_dir: Path) -> None:
        self.directory = Path(state_dir).resolve() / "valkey"
        self.log = self.directory / "valkey.log"
        self._record = self.directory / "socket-path"

    def make(self) -> None:
        """Make the directory, private also when it was there before."""
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.directory.chmod(0o700)

    def try_lock(self) -> int | None:
        """The locked file descriptor, or None when a server (or its starter) holds the lock."""
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def claim_socket(self) -> Path:
        """A free path for the socket, recorded for those who connect. Call it with the lock held.

        A directory too long for a unix socket gets a private one under the temporary directory, which is
        kept for the next start so that the address stays the same.

        Raises:
            OSError: the temporary directory is too long as well.
        """
        path = self._choose_socket()
        path.unlink(missing_ok=True)  # with the lock held, what is there is left from a crash
        self._record.write_text(str(path))
        return path

    def recorded_socket(self) -> Path | None:
        """Where the server that runs, or the last one, listens; None before the first start."""
        try:
            return Path(self._record.read_text())
        except FileNotFoundError:
            return None

    def remove_socket(self, path: Path) -> None:
        """Remove the socket of a server that has ended, unless another one has taken over meanwhile."""
        lock = self.try_lock()
        if lock is None:
            return
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(lock)

    def log_tail(self) -> str:
        """The end of what the server of the last start wrote."""
        try:
            return self.log.read_text(errors="replace")[-2000:].strip() or "no output"
        except FileNotFoundError:
            return "no output"

    def _choose_socket(self) -> Path:
        path = self.directory / "valkey.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
            return path
        recorded = self.recorded_socket()
        if recorded is not None and recorded != path and _is_private(recorded.parent):
            return recorded
        path = Path(tempfile.mkdtemp(prefix="pondera-")) / "valkey.sock"
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            path.parent.rmdir()
            raise OSError(f"no directory is short enough for a unix socket: {path}")
        return path


def _is_private(directory: Path) -> bool:
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077
