"""The Ray actor that holds one engine and serves any number of clients."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil

from engines import private_log
from engines.child_watch import ChildWatch
from engines.outbox import Outbox
from engines.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineLoad,
    EngineLost,
    Finish,
    GenerateRequest,
    RewardRequest,
    Usage,
)
from engines.sglang_engine import SGLangEngine
from engines.spec import EngineSpec
from engines.wire import Request, pack_reports, unpack_operations

_FAREWELL_S = 0.2
_REAP_S = 5.0
_MOST_CALLS = 4096


class _Client:
    """One client's calls and the reports it has yet to fetch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outbox = Outbox(loop.time)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.aborted: set[int] = set()
        self.heard_at = loop.time()
        self.lease: asyncio.TimerHandle | None = None


class EngineActor:
    """Serves `RayEngine`. A client holds one `stream` open and sends its operations by `submit`.

    A client is dropped, and its calls are aborted, when its stream ends or when it has calls and was not
    heard of for `lease_s` seconds.

    When a worker process of the engine dies, the actor ends itself and what is left of them; Ray starts it
    anew.
    """

    def __init__(self, spec: EngineSpec, lease_s: float) -> None:
        self._incarnation = secrets.token_hex(8)
        self._lease_s = lease_s
        self._clients: dict[str, _Client] = {}
        with _hidden_main_module():
            self._engine = SGLangEngine(spec)
        self._watch: ChildWatch | None = None
        self._dying = False

    async def start(self) -> tuple[str, EngineInfo]:
        """This incarnation's name, and what it serves."""
        if self._watch is None:
            self._watch = ChildWatch(self._engine.worker_pids, self._worker_died)
            await self._engine.freeze_garbage()
        return self._incarnation, await self._engine.info()

    async def load(self) -> EngineLoad:
        return await self._engine.load()

    async def ping(self) -> bool:
        return not self._dying

    async def process_ids(self) -> tuple[int, ...]:
        """The actor's process, then the engine's worker processes."""
        return (os.getpid(), *self._engine.worker_pids)

    async def stream(self, client_id: str) -> AsyncIterator[bytes]:
        """All reports of a client's calls, in batches, until it is dropped."""
        await self.start()
        client = self._clients[client_id] = _Client(asyncio.get_running_loop())
        try:
            yield self._incarnation.encode()
            while reports := await client.outbox.take():
                yield pack_reports(reports)
        finally:
            await self._drop(client_id, client)

    async def submit(self, client_id: str, incarnation: str, operations: bytes) -> bool:
        """Start and abort calls; none is a sign of life. False: they were not taken, the stream is gone."""
        client = self._clients.get(client_id)
        if client is None or incarnation != self._incarnation or self._dying:
            return False
        client.heard_at = asyncio.get_running_loop().time()
        unpacked = unpack_operations(operations)
        if (calls := sum(request is not None for _, _, request in unpacked)) > 1:
            self._engine.expect(calls)
        for what, number, request in unpacked:
            if what == "abort":
                await self._abort(client_id, client, number)
            elif request is not None and self._calls >= _MOST_CALLS:
                client.outbox.put((number, EngineError("the engine's queue is full")))
            elif request is not None:
                task = asyncio.create_task(self._run(client_id, client, number, request))
                client.tasks[number] = task
        self._watch_lease(client_id, client)
        return True

    @property
    def _calls(self) -> int:
        return sum(len(client.tasks) for client in self._clients.values())

    async def _abort(self, client_id: str, client: _Client, number: int) -> None:
        if number in client.tasks:
            client.aborted.add(number)
            await self._engine.abort([_engine_call(client_id, number)])

    async def _run(self, client_id: str, client: _Client, number: int, request: Request) -> None:
        try:
            if isinstance(request, GenerateRequest):
                await self._generate(client_id, client, number, request)
            else:
                if number in client.aborted:
                    raise EngineError("the score was aborted")
                inner = _renamed(request, _engine_call(client_id, number))
                ask = self._engine.reward if isinstance(request, RewardRequest) else self._engine.score
                client.outbox.put((number, await ask(inner)))
        except EngineError as error:
            client.outbox.put((number, error))
        except Exception as error:
            private_log.write("".join(traceback.format_exception(error)))
            client.outbox.put((number, EngineError(f"the engine failed: {type(error).__name__}")))
        finally:
            client.tasks.pop(number, None)
            client.aborted.discard(number)

    async def _generate(self, client_id: str, client: _Client, number: int, request: GenerateRequest) -> None:
        if number in client.aborted:  # before this task's first step
            usage = Usage(len(request.input_ids), 0, 0)
            client.outbox.put((number, Chunk(finish=Finish.ABORT, usage=usage, engine_s=0.0)))
            return
        inner = _renamed(request, _engine_call(client_id, number))
        async for chunk in self._engine.generate(inner):
            client.outbox.put((number, chunk))

    def _watch_lease(self, client_id: str, client: _Client) -> None:
        if client.lease is None and client.tasks:
            loop = asyncio.get_running_loop()
            client.lease = loop.call_later(self._lease_s, self._check_lease, client_id, client)

    def _check_lease(self, client_id: str, client: _Client) -> None:
        client.lease = None
        if self._clients.get(client_id) is not client:
            return
        silent = asyncio.get_running_loop().time() - client.heard_at
        if client.tasks and silent >= self._lease_s:
            client.outbox.close()
        else:
            self._watch_lease(client_id, client)

    async def _drop(self, client_id: str, client: _Client) -> None:
        if self._clients.get(client_id) is client:
            del self._clients[client_id]
        if client.lease is not None:
            client.lease.cancel()
        client.aborted.update(client.tasks)
        await self._engine.abort([_engine_call(client_id, number) for number in client.tasks])

    def _worker_died(self, pid: int) -> None:
        if self._dying:
            return
        self._dying = True
        message = f"worker process {pid} of the engine died"
        private_log.write(message)
        for client in self._clients.values():
            for number in list(client.tasks):
                client.outbox.put((number, EngineLost(message)))
        asyncio.get_running_loop().call_later(_FAREWELL_S, _end_process)

    async def shutdown(self) -> tuple[str, int]:
        """Stop the engine's processes; returns host and process of the actor, which its owner ends."""
        self._dying = True
        if self._watch is not None:
            self._watch.stop()
        await self._engine.close()
        await asyncio.to_thread(_end_children)
        return os.uname().nodename, os.getpid()


def _engine_call(client_id: str, number: int) -> str:
    return f"{client_id}/{number}"


def _renamed(request: Any, call_id: str) -> Any:
    return dataclasses.replace(request, call_id=call_id)


def _end_process() -> None:
    _end_children()
    os._exit(1)


def _end_children() -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGKILL)
    # What is not reaped here stays as a zombie where the container's first process reaps none.
    deadline = time.monotonic() + _REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.01)


@contextlib.contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Keep spawned workers from importing Ray's worker script, and so all of Ray, as their main module."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
