"""The HTTP server."""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime

import httpx
import pytest
from fastapi import FastAPI

from services.http_server import HttpServer
from services.listen import bind


def application(slow: asyncio.Event) -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def now() -> str:
        return "now"

    @app.get("/slow")
    async def later() -> str:
        await slow.wait()
        return "later"

    return app


async def test_it_ends_soon_after_stop_and_lets_what_is_in_flight_end() -> None:
    slow = asyncio.Event()
    started: list[bool] = []

    async def on_started() -> None:
        started.append(True)

    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        server = HttpServer(application(slow), on_started=on_started)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
            assert (await client.get("/")).text == '"now"'
            assert started == [True]
            waiting = asyncio.create_task(client.get("/slow"))
            await asyncio.sleep(0.1)
            server.stop()
            await asyncio.sleep(0.1)
            assert not task.done()
            slow.set()
            assert (await waiting).text == '"later"'
        await asyncio.wait_for(task, 5)


async def test_the_date_header_keeps_up_although_the_idle_server_wakes_up_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        server = HttpServer(application(asyncio.Event()))
        ticks: list[float] = []
        on_tick = server.on_tick

        async def noted(counter: int) -> bool:
            ticks.append(time.monotonic())
            return await on_tick(counter)

        monkeypatch.setattr(server, "on_tick", noted)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
            await asyncio.sleep(2.2)
            answer = await client.get("/")
        told = parsedate_to_datetime(answer.headers["date"]).timestamp()
        assert time.time() - told < 3
        assert "server" not in answer.headers
        assert len(ticks) <= 4
        server.stop()
        await asyncio.wait_for(task, 5)
