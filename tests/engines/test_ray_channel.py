from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from engines.protocol import Chunk, EngineError, Finish, GenerateRequest, Sampling, Usage
from engines.ray_channel import Channel
from engines.wire import Report, pack_reports, unpack_operations

FORGET_S = 0.05
LEASE_S = 0.04


class Actor:
    """An actor's handle: it takes everything and reports what it is told to."""

    def __init__(self) -> None:
        self.stream = self.submit = self
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.operations: list[tuple[str, int]] = []
        self.submits = 0

    def options(self, **_: Any) -> Any:
        return self

    def remote(self, _client: str, *rest: Any) -> Any:
        return self._submit(rest[1]) if rest else self._stream()

    async def _submit(self, data: bytes) -> bool:
        self.submits += 1
        self.operations += [(what, number) for what, number, _ in unpack_operations(data)]
        return True

    async def _stream(self) -> AsyncIterator[Awaitable[bytes]]:
        yield _ready(b"incarnation")
        while True:
            yield _ready(await self.sent.get())

    def report(self, *reports: Report) -> None:
        self.sent.put_nowait(pack_reports(reports))


async def _ready(data: bytes) -> bytes:
    return data


def request(call_id: str) -> GenerateRequest:
    return GenerateRequest(call_id, (1,), Sampling(5))


def end(finish: Finish = Finish.STOP) -> Chunk:
    return Chunk((), finish=finish, usage=Usage(1, 0, 0))


@pytest.mark.parametrize("how", ["aborted", "abandoned", "both"])
async def test_a_call_nobody_wants_and_that_does_not_end_is_forgotten_and_signs_of_life_stop(
    how: str,
) -> None:
    actor = Actor()
    channel = Channel(actor, "x", LEASE_S, FORGET_S)
    await channel.connect()
    pending = channel.open(request("a"))
    if how != "abandoned":
        channel.abort("a")
    if how != "aborted":
        channel.abandon(pending)
    with pytest.raises(EngineError, match="call_id is in use"):
        channel.open(request("a"))
    if how == "aborted":
        with pytest.raises(EngineError, match="did not end a call in time"):
            await pending.take()
    else:
        await asyncio.sleep(2 * FORGET_S)
    await asyncio.sleep(LEASE_S)
    assert actor.operations[-1] == ("abort", pending.number)
    submits = actor.submits
    await asyncio.sleep(2 * LEASE_S)
    assert actor.submits == submits
    again = channel.open(request("a"))
    actor.report((pending.number, end()), (again.number, Chunk((7,))), (again.number, end()))
    assert (await again.take()) == Chunk((7,))
    await channel.close()


async def test_a_call_that_is_wanted_or_ended_in_time_is_not_given_up() -> None:
    actor = Actor()
    channel = Channel(actor, "x", LEASE_S, FORGET_S)
    await channel.connect()
    wanted, aborted = channel.open(request("a")), channel.open(request("b"))
    channel.abort("b")
    actor.report((aborted.number, end(Finish.ABORT)))
    assert (await aborted.take()) == end(Finish.ABORT)
    channel.abandon(aborted)
    await asyncio.sleep(2 * FORGET_S)
    assert ("abort", wanted.number) not in actor.operations
    assert actor.operations.count(("abort", aborted.number)) == 1
    actor.report((wanted.number, end()))
    assert (await wanted.take()) == end()
    await channel.close()
