"""The client's end of the channel to an engine actor."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from itertools import count
from typing import Any

from ray.exceptions import ActorDiedError, RayError

from engines.protocol import Chunk, EngineError, EngineLost, EngineRefused, Reward, Scores
from engines.wire import Operation, Outcome, Report, Request, pack_operations, unpack_reports

_RECONNECT_S = (0.2, 2.0)
_FORGET_S = 30.0
"""How long the last report of a call that nobody wants any more is waited for."""


class Pending:
    """One call in flight: what arrived for it and was not taken yet. A call's own tokens bound it."""

    __slots__ = ("_arrived", "_reports", "abandoned", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.abandoned = False
        self._reports: deque[Outcome] = deque()
        self._arrived = asyncio.Event()

    def put(self, report: Outcome) -> None:
        if not self.abandoned:
            self._reports.append(report)
            self._arrived.set()

    async def take(self) -> Chunk | Scores | Reward:
        """The next report; an error is raised."""
        while not self._reports:
            self._arrived.clear()
            await self._arrived.wait()
        report = self._reports.popleft()
        if isinstance(report, EngineError):
            raise report
        return report


class Channel:
    """All calls of one client to one actor.

    They share one stream of reports, and operations of one turn of the event loop go out in one message.
    When the actor is lost, its calls fail with `EngineLost`, and the channel opens itself anew as soon as
    Ray has restarted the actor; it gives up when Ray does.

    A call that was aborted or abandoned, and has not ended `forget_s` seconds later, is forgotten: it would
    keep up the signs of life for ever.
    """

    def __init__(self, actor: Any, name: str, lease_s: float, forget_s: float = _FORGET_S) -> None:
        self._actor = actor
        self._name = name
        self._beat_s = lease_s / 4
        self._forget_s = forget_s
        self._forgetting: dict[int, asyncio.TimerHandle] = {}
        self._client_id = secrets.token_hex(8)
        self._pending: dict[int, Pending] = {}
        self._numbers: dict[str, int] = {}
        self._call_ids: dict[int, str] = {}
        self._next_number = count()
        self._operations: list[Operation] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._incarnation: str | None = None
        self._reader: asyncio.Task[None] | None = None
        self._beat: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        return self._incarnation is not None

    async def connect(self) -> None:
        """Open the stream of reports.

        Raises:
            EngineLost: the actor is gone for good.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(opened))
        await opened

    async def close(self) -> None:
        """Fail the calls in flight and stop reading."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._beat is not None:
            self._beat.cancel()
        self._lose("was closed")

    async def _read(self, opened: asyncio.Future[None]) -> None:
        pause, longest = _RECONNECT_S
        while True:
            try:
                await self._read_stream(opened)
            except ActorDiedError:
                self._lose("died and is not restarted")
                if not opened.done():
                    opened.set_exception(EngineLost(f"engine {self._name!r} died"))
                return
            except RayError:
                pass  # unavailable while it restarts
            pause = _RECONNECT_S[0] if self.connected else min(2 * pause, longest)
            self._lose("was lost")
            await asyncio.sleep(pause)

    async def _read_stream(self, opened: asyncio.Future[None]) -> None:
        stream = self._actor.stream.options(num_returns="streaming").remote(self._client_id)
        async for reference in stream:
            data: bytes = await reference
            if self._incarnation is None:
                self._incarnation = data.decode()
                if not opened.done():
                    opened.set_result(None)
                continue
            for report in unpack_reports(data):
                self._deliver(report)

    def _deliver(self, report: Report) -> None:
        number, what = report
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.put(what)
        if not isinstance(what, Chunk) or what.finish is not None:
            self._forget(number)

    def _forget(self, number: int) -> None:
        del self._pending[number]
        del self._numbers[self._call_ids.pop(number)]
        timer = self._forgetting.pop(number, None)
        if timer is not None:
            timer.cancel()

    def _lose(self, what_happened: str) -> None:
        self._incarnation = None
        self._operations.clear()
        for number in list(self._pending):
            self._deliver((number, EngineLost(f"engine {self._name!r} {what_happened}")))

    def open(self, request: Request) -> Pending:
        """Start a call.

        Raises:
            EngineLost: the actor is not there now.
            EngineRefused: a call of this id is in flight.
        """
        if not self.connected:
            raise EngineLost(f"engine {self._name!r} is not available")
        if request.call_id in self._numbers:
            raise EngineRefused("call_id is in use", "call_id")
        number = next(self._next_number)
        pending = self._pending[number] = Pending(number)
        self._numbers[request.call_id] = number
        self._call_ids[number] = request.call_id
        self._post(("call", number, request))
        return pending

    def abort(self, call_id: str) -> None:
        """End a call; its last report still comes. An unknown call is ignored."""
        number = self._numbers.get(call_id)
        if number is not None:
            self._post(("abort", number, None))
            self._forget_later(number)

    def abandon(self, pending: Pending) -> None:
        """Nobody takes the call's reports any more. It runs on, but not for long."""
        pending.abandoned = True
        if pending.number in self._pending:
            self._forget_later(pending.number)

    def _forget_later(self, number: int) -> None:
        if number not in self._forgetting:
            loop = asyncio.get_running_loop()
            self._forgetting[number] = loop.call_later(self._forget_s, self._give_up, number)

    def _give_up(self, number: int) -> None:
        if self.connected:
            self._post(("abort", number, None))
        self._deliver((number, EngineError(f"engine {self._name!r} did not end a call in time")))

    def _post(self, operation: Operation) -> None:
        if not self._operations:
            asyncio.get_running_loop().call_soon(self._send)
        self._operations.append(operation)

    def _send(self) -> None:
        operations, self._operations = self._operations, []
        if operations:
            self._submit(operations)

    def _submit(self, operations: list[Operation]) -> None:
        task = asyncio.create_task(self._submit_now(operations))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        if self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(self._beat_s, self._show_life)

    async def _submit_now(self, operations: list[Operation]) -> None:
        try:
            taken: bool = await self._actor.submit.remote(
                self._client_id, self._incarnation, pack_operations(operations)
            )
        except RayError:
            taken = False
        if not taken:
            lost = EngineLost(f"engine {self._name!r} was lost")
            for what, number, _ in operations:
                if what == "call":
                    self._deliver((number, lost))

    def _show_life(self) -> None:
        self._beat = None
        if self._pending and self.connected:
            self._submit([])
