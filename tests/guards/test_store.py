from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import time
import traceback

import pytest

from guards.embedded import EmbeddedValkey
from guards.store import StoreClient, StoreUnavailable, connect

PASSWORD = "hunter2"


def kill_and_wait(server: EmbeddedValkey) -> None:
    assert server.pid is not None
    pidfd = os.pidfd_open(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 5)[0]
    os.close(pidfd)


@pytest.mark.parametrize(
    "url",
    [
        f"http://u:{PASSWORD}@localhost",
        f"redis://u:{PASSWORD}@localhost:notaport",
        f"redis://u:{PASSWORD}@",
        f"redis://u:{PASSWORD}@localhost/mydb",
        f"redis://u:{PASSWORD}@localhost?socket_timeout=0",
        f"redis://u:{PASSWORD}@localhost?max_connections=100000",
        f"redis://u:{PASSWORD}@localhost?db=x",
        f"unix://u:{PASSWORD}@",
        f"redis://u:{PASSWORD}@[::1",
        "",
    ],
)
def test_a_bad_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        connect(url)
    shown = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value.__context__)
    assert PASSWORD not in shown


async def test_the_password_shows_in_no_error_repr_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = connect(f"redis://u:{PASSWORD}@127.0.0.1:1/0", timeout_s=0.5)
    with pytest.raises(StoreUnavailable) as caught:
        await client.get("a")
    shown = "".join(traceback.format_exception(caught.value))
    shown += repr(client) + str(client) + repr(client.connection_pool) + repr(client.pipeline()) + caplog.text
    assert PASSWORD not in shown
    await client.aclose()


async def test_a_wrong_password_is_an_unavailable_store(client: StoreClient, store_url: str) -> None:
    await client.config_set("requirepass", "right")
    try:
        other = connect(store_url.replace("unix://", f"unix://:{PASSWORD}@"))
        with pytest.raises(StoreUnavailable) as caught:
            await other.get("a")
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))
        await other.aclose()
    finally:
        await client.config_set("requirepass", "")


async def test_a_killed_server_is_unavailable_at_once_and_comes_back(own_server: EmbeddedValkey) -> None:
    client = connect(own_server.url)
    await client.set("a", "1")
    kill_and_wait(own_server)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await client.get("a")
    with pytest.raises(StoreUnavailable):
        async with client.pipeline() as pipe:
            pipe.set("a", "2")
            await pipe.execute()
    assert time.monotonic() - started < 1
    own_server.start()
    assert await client.get("a") == "1"
    await client.aclose()


async def test_connections_over_tcp_that_died_in_the_pool_are_replaced(own_server: EmbeddedValkey) -> None:
    local = connect(own_server.url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    await local.config_set("port", port)
    client = connect(f"redis://127.0.0.1:{port}/0")
    await client.set("a", "1")
    kill_and_wait(own_server)
    await asyncio.to_thread(own_server.start)  # the event loop sees the connections end
    await local.config_set("port", port)
    assert await client.get("a") == "1"
    await client.aclose()
    await local.aclose()


async def test_a_hanging_server_is_unavailable_after_the_timeout(own_server: EmbeddedValkey) -> None:
    client = connect(own_server.url, timeout_s=0.2)
    await client.ping()
    assert own_server.pid is not None
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await client.get("a")
        assert time.monotonic() - started < 1
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    await client.aclose()


async def test_a_cancelled_command_does_not_leave_its_reply_to_the_next(own_server: EmbeddedValkey) -> None:
    client = connect(own_server.url, max_connections=1)
    await client.mset({"a": "1", "b": "2"})
    assert own_server.pid is not None
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        task = asyncio.ensure_future(client.get("a"))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    assert await client.get("b") == "2"
    await client.aclose()


async def test_more_commands_than_connections_wait_for_one(store_url: str) -> None:
    client = connect(store_url, max_connections=2)
    assert await asyncio.gather(*(client.ping() for _ in range(100))) == [True] * 100
    await client.aclose()


async def test_a_full_store_is_unavailable_for_writes(client: StoreClient) -> None:
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="no writes"):
            await client.set("a", "1")
        assert await client.get("a") is None
    finally:
        await client.config_set("maxmemory", "256mb")
