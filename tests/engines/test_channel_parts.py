"""The parts of the way between client and actor that need neither Ray nor an engine."""

from __future__ import annotations

import asyncio
import sys

import pytest

from engines.child_watch import ChildWatch
from engines.outbox import PAUSE_S, Outbox
from engines.protocol import (
    Chunk,
    EngineError,
    EngineLost,
    EngineRefused,
    Finish,
    GenerateRequest,
    Reward,
    RewardRequest,
    Sampling,
    ScoreRequest,
    Scores,
    Usage,
)
from engines.wire import Operation, Report, pack_operations, pack_reports, unpack_operations, unpack_reports

USAGE = Usage(9, 4, 2)


def test_reports_cross_unchanged() -> None:
    reports: list[Report] = [
        (0, Chunk((1, 2), (-0.5, -1.5), (((1, -0.5), (3, -2.0)), ((2, -1.5),)))),
        (1, Chunk((7,))),
        (2, Chunk((), finish=Finish.ABORT, usage=USAGE, engine_s=0.5)),
        (3, Chunk((5,), finish=Finish.STOP, matched_stop="\n", usage=USAGE)),
        (4, Scores((0.25, 0.75), USAGE, 0.1)),
        (5, Reward((-3.5, 0.25), USAGE, 0.1)),
    ]
    assert unpack_reports(pack_reports(reports)) == reports


@pytest.mark.parametrize("error", [EngineRefused("no", "seed"), EngineLost("gone"), EngineError("bad")])
def test_errors_cross_with_their_type_and_field(error: EngineError) -> None:
    [(number, got)] = unpack_reports(pack_reports([(5, error)]))
    assert number == 5
    assert type(got) is type(error)
    assert str(got) == str(error)
    assert getattr(got, "field", None) == getattr(error, "field", None)


def test_operations_cross_unchanged() -> None:
    generate = GenerateRequest("a", (1,), Sampling(3, stop=("x",)), trace={"traceparent": "t"})
    operations: list[Operation] = [
        ("call", 1, generate),
        ("call", 2, ScoreRequest("b", (1,), (2, 3))),
        ("call", 3, RewardRequest("c", (1, 2), "salt")),
        ("abort", 1, None),
    ]
    assert unpack_operations(pack_operations(operations)) == operations


def test_the_value_of_a_head_with_several_outputs_is_not_guessed() -> None:
    assert Reward((0.25,), USAGE).value == 0.25
    with pytest.raises(ValueError, match="2 outputs"):
        _ = Reward((0.25, 0.75), USAGE).value


async def test_first_chunks_and_ends_leave_at_once_and_what_lies_between_is_gathered() -> None:
    loop = asyncio.get_running_loop()
    outbox = Outbox(loop.time)
    outbox.put((1, Chunk((1,))))
    outbox.put((2, Chunk((1,))))
    assert len(await outbox.take()) == 2
    left = loop.time()
    outbox.put((1, Chunk((2,))))
    outbox.put((2, Chunk((2,))))
    assert len(await outbox.take()) == 2
    assert loop.time() - left >= PAUSE_S * 0.9
    outbox.put((1, Chunk((3,))))
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put((2, Chunk((), finish=Finish.STOP, usage=USAGE)))
    left = loop.time()
    assert [number for number, _ in await waiting] == [1, 2]
    assert loop.time() - left < PAUSE_S


async def test_a_closed_outbox_ends_whoever_waits_for_it() -> None:
    outbox = Outbox(asyncio.get_running_loop().time)
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put((1, Chunk((1,))))
    outbox.close()
    assert await waiting == []


async def test_the_death_of_a_child_is_told_once() -> None:
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
        for _ in range(2)
    ]
    died: asyncio.Queue[int] = asyncio.Queue()
    watch = ChildWatch([child.pid for child in children], died.put_nowait)
    children[0].kill()
    assert await asyncio.wait_for(died.get(), 5) == children[0].pid
    watch.stop()
    children[1].kill()
    for child in children:
        await child.wait()
    assert died.empty()
    watch.stop()
