"""Starting, losing engines, storms of leaving clients, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from guards.budget import Budget
from guards.embedded import connect_or_start
from guards.ledger import Ledger
from guards.store import connect
from guards.tenants import TenantStore
from support.live import MODELS, PONDERA, TINY, Live, clean_environment, command, live

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

QUERY = {"model": "tiny-reasoner", "query": "Compute (47+38)*3-29.", "effort": "high", "seed": 3}


async def outstanding(server: Live) -> tuple[int, int]:
    """Tokens reserved and searches in flight, over all tenants."""
    handle = await asyncio.to_thread(connect_or_start, server.state)
    client = connect(handle.url)
    try:
        ledger, reserved, flying = Ledger(client), 0, 0
        for tenant in await TenantStore(client).list(limit=1000):
            reserved += (await ledger.usage(tenant.id, Budget()))["day"].reserved
            flying += await ledger.in_flight(tenant.id)
        return reserved, flying
    finally:
        await client.aclose()
        handle.close()


async def storm(server: Live, requests: int, chance: random.Random) -> dict[str, int]:
    """Send requests at a bounded pace; drop each at a random point. Returns how they ended."""
    ends: dict[str, int] = {}
    gate = asyncio.Semaphore(24)

    async def one() -> None:
        body: dict[str, Any] = QUERY | {"deadline_ms": chance.choice([30, 200, 5000, 20_000])}
        path = "/v1/reason"
        if chance.random() < 0.5:
            path = "/v1/chat/completions"
            body = {
                "model": "tiny-reasoner",
                "messages": [{"role": "user", "content": QUERY["query"]}],
                "stream": chance.random() < 0.7,
                "reasoning_effort": "high",
                "pondera": {"deadline_ms": body["deadline_ms"]},
            }
        async with gate:
            try:
                async with (
                    asyncio.timeout(chance.choice([0.02, 0.1, 0.3, 1.0, 2.0])),
                    httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client,
                ):
                    headers = {"Authorization": f"Bearer {server.key}"}
                    response = await client.post(path, json=body, headers=headers)
                    end = str(response.status_code)
            except TimeoutError:
                end = "dropped"
            except httpx.HTTPError:
                end = "cut"
            ends[end] = ends.get(end, 0) + 1

    await asyncio.gather(*(one() for _ in range(requests)))
    return ends


def test_an_engine_that_dies_comes_back_and_two_hundred_lost_requests_leave_nothing(tmp_path: Path) -> None:
    with live(tmp_path / "state", [TINY]) as server:

        async def drill() -> dict[str, int]:
            chance = random.Random(20)
            task = asyncio.create_task(storm(server, 200, chance))
            await asyncio.sleep(2.0)
            victim = server.schedulers()[0]
            victim.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=10) as client:
                while (await client.get("/readyz")).status_code == 200:
                    assert time.monotonic() - killed < 2.0, "the death was not noticed in 2 s"
                    await asyncio.sleep(0.05)
                assert (await client.get("/healthz")).status_code == 200
            return await task

        ends = asyncio.run(drill())
        assert sum(ends.values()) == 200
        assert ends.get("dropped", 0) > 20
        assert set(ends) <= {"dropped", "200", "503", "504", "502"}, ends
        deadline = time.monotonic() + 20
        while (left := asyncio.run(outstanding(server))) != (0, 0):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
        server.wait_ready()
        with server.client() as client:
            answer = client.post("/v1/reason", json=QUERY).json()
            assert answer["answer"] == "226"
            metrics = client.get("/metrics").text
        assert 'pondera_searches_running{model="tiny-reasoner"} 0.0' in metrics
        assert 'pondera_engine_calls_running{model="tiny-reasoner"} 0.0' in metrics

        # The engine dies first, then comes the Ctrl-C.
        server.schedulers()[0].send_signal(signal.SIGKILL)
        assert server.stop(signal.SIGINT) == []
        assert server.process.returncode == 0


def test_a_restart_keeps_tenants_and_spending_and_shows_no_key(tmp_path: Path) -> None:
    with live(tmp_path / "state", [TINY]) as server:
        key = server.key
        assert key is not None
        with server.client() as client:
            charged = client.post("/v1/reason", json=QUERY).json()["receipt"]["tokens"]["charged"]
        assert server.stop(signal.SIGTERM) == []
        assert server.process.returncode == 0
    began = time.monotonic()
    with live(tmp_path / "state", [TINY]) as server:
        assert time.monotonic() - began < 60
        assert server.key is None
        hint = re.search(r"for another: (.*)", server.output.read_text())
        assert hint is not None
        words = shlex.split(hint[1])
        assert words[:4] == ["pondera", "tenants", "add-key", "default"]
        another = server.pondera(*words[1:])
        for working in (key, another):
            with server.client(working) as client:
                assert client.post("/v1/reason", json=QUERY).status_code == 200
        line = server.pondera("tenants", "list")
        used = int(line.split("day ")[1].split("+")[0])
        assert used > charged


def test_a_ctrl_c_that_the_whole_group_gets_ends_a_search_with_its_best_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with live(tmp_path / "state", [TINY]) as server:
        key = server.key
        group = os.getpgid(server.process.pid)
        # So many samples that some have ended and others have not when the signal comes.
        body: dict[str, Any] = {k: v for k, v in QUERY.items() if k != "effort"}
        body |= {"technique": "best_of_n", "params": {"n": 1024}}
        with ThreadPoolExecutor(1) as pool, server.client() as client:
            answer = pool.submit(client.post, "/v1/reason", json=body)
            while not _generate_calls(server):
                assert not answer.done(), answer.result().text
                time.sleep(0.05)
            assert server.stop(signal.SIGINT, group=True) == []
            response = answer.result(timeout=10)
        assert server.process.returncode == 0
        assert _living(group) == []
        # The engine was not taken down under the search, and the client got what there was.
        assert response.status_code == 200, response.text
        receipt = response.json()["receipt"]
        assert (response.json()["status"], receipt["stop_reason"]) == ("partial", "shutdown")
        charged = receipt["tokens"]["charged"]
    with live(tmp_path / "state", [TINY]) as server:
        assert server.key is None
        line = server.pondera("tenants", "list")
        assert f"day {charged}+0/" in line  # settled, and on disk
        with server.client(key) as client:
            assert client.post("/v1/reason", json=QUERY).json()["answer"] == "226"
        assert server.stop(signal.SIGINT, group=True) == []
        assert server.process.returncode == 0


def _generate_calls(server: Live) -> int:
    """Engine calls that have ended so far."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=10).text
    name = r'^pondera_engine_call_added_seconds_count\{kind="generate",model="tiny-reasoner"\} (\d+)'
    found = re.search(name, text, re.MULTILINE)
    return int(found[1]) if found else 0


def _living(group: int) -> list[int]:
    """Processes of a process group, without those that have ended and wait to be collected."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def test_a_signal_during_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(MODELS)
    process = subprocess.Popen(
        [PONDERA, "serve", "--port", "0", "--state-dir", str(tmp_path)],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    me = psutil.Process(process.pid)
    try:
        deadline = time.monotonic() + 60
        while not any("EngineActor" in command(p) for p in me.children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        mine = me.children(recursive=True)
    finally:
        process.terminate()
    process.wait(60)
    _, alive = psutil.wait_procs(mine, timeout=0.5)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_taken_port_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [PONDERA, "serve", "--port", str(port), "--state-dir", str(tmp_path)],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
