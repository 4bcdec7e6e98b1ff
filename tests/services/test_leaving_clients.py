"""Clients that leave, clients that share, and a server that stays responsive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from engines.scripted import Behaviour
from support.site import Site

HI = [{"role": "user", "content": "hi"}]


def hangs(_: Any, __: int) -> Behaviour:
    return Behaviour(hang_after=5)


async def leave(site: Site, path: str, body: dict[str, Any], calls: int) -> None:
    """Send a request, wait until its calls run, and drop the connection."""
    async with httpx.AsyncClient(base_url=site.url, headers=site.client.headers, trust_env=False) as client:
        task = asyncio.create_task(client.post(path, json=body, timeout=30))
        while len(site.engine.running) < calls:
            await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("stream", [False, True])
async def test_case_17_a_client_that_hangs_up_ends_its_search(
    open_site: Callable[..., Any], stream: bool
) -> None:
    async with open_site("Answer: 7", behave=hangs) as site:
        body = {"model": "toy", "messages": HI, "stream": stream, "reasoning_effort": "high"}
        await leave(site, "/v1/chat/completions", body, calls=16)
        assert await site.idle()
        assert len(set(site.engine.aborts)) == 16
        used = (await site.ledger.usage(site.tenant.id, site.tenant.budget))["day"].used
        assert len("u:hi\na:") + 16 <= used <= len("u:hi\na:") + 16 * 5


async def test_case_17_the_native_route_too(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7", behave=hangs) as site:
        await leave(site, "/v1/reason", {"model": "toy", "query": "hi", "effort": "high"}, calls=16)
        assert await site.idle()


async def test_case_15_hang_ups_at_random_points_leave_nothing_behind(open_site: Callable[..., Any]) -> None:
    chance = random.Random(7)

    def behave(_: Any, n: int) -> Behaviour:
        kind = n % 5
        return Behaviour(
            delay_s=0.002, lost_after=3 if kind == 0 else None, hang_after=6 if kind == 1 else None
        )

    async with open_site(
        "step one\nAnswer: 7", behave=behave, limits={"max_concurrent_searches": 300}
    ) as site:

        async def one() -> None:
            async with httpx.AsyncClient(
                base_url=site.url, headers=site.client.headers, trust_env=False
            ) as c:
                body = {
                    "model": "toy",
                    "messages": HI,
                    "stream": chance.random() < 0.5,
                    "pondera": {
                        "technique": "best_of_n",
                        "params": {"n": 4},
                        "deadline_ms": chance.choice([50, 3000]),
                    },
                }
                with contextlib.suppress(TimeoutError, httpx.HTTPError):
                    async with asyncio.timeout(chance.uniform(0.0, 0.3)):
                        await c.post("/v1/chat/completions", json=body)

        for _ in range(4):
            await asyncio.gather(*(one() for _ in range(25)))
        assert await site.idle(within_s=10)
        assert (await site.client.get("/readyz")).status_code == 200


async def test_case_55_health_and_other_queries_are_answered_while_one_runs(
    open_site: Callable[..., Any],
) -> None:
    def behave(request: Any, n: int) -> Behaviour:
        return Behaviour(hang_after=2 if n == 0 else None)

    async with open_site("Answer: 7", behave=behave) as site:
        body = {"model": "toy", "query": "hi", "effort": "low", "deadline_ms": 20_000}
        slow = asyncio.create_task(site.client.post("/v1/reason", json=body))
        while not site.engine.running:
            await asyncio.sleep(0.005)
        began = time.monotonic()
        assert (await site.client.get("/healthz")).status_code == 200
        assert (await site.client.post("/v1/reason", json=body)).status_code == 200
        assert time.monotonic() - began < 1
        assert not slow.done()
        slow.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await slow
        assert await site.idle()


async def test_case_57_two_streams_at_once_do_not_mix(open_site: Callable[..., Any]) -> None:
    texts = ["aaaa aaaa aaaa", "bbbb bbbb bbbb"]
    async with open_site(*texts, behave=lambda _, __: Behaviour(chunk_tokens=2, delay_s=0.002)) as site:

        async def one() -> str:
            body = {"model": "toy", "messages": HI, "stream": True, "reasoning_effort": "low"}
            response = await site.client.post("/v1/chat/completions", json=body)
            events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
            choices = [choice for event in events for choice in json.loads(event)["choices"]]
            return "".join(choice["delta"].get("content") or "" for choice in choices)

        assert sorted(await asyncio.gather(one(), one())) == texts


async def test_case_49_two_queries_at_once_keep_their_own_parameters(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7", behave=lambda _, __: Behaviour(delay_s=0.002)) as site:

        async def one(n: int) -> int:
            body = {"model": "toy", "query": "hi", "technique": "best_of_n", "params": {"n": n}}
            receipt = (await site.client.post("/v1/reason", json=body)).json()["receipt"]
            assert receipt["params"]["n"] == n
            return int(receipt["calls"]["generate"])

        assert list(await asyncio.gather(one(3), one(7), one(5))) == [3, 7, 5]
        after = await site.client.post(
            "/v1/reason", json={"model": "toy", "query": "hi", "technique": "best_of_n"}
        )
        assert after.json()["receipt"]["calls"]["generate"] == 16


async def test_a_silent_search_keeps_the_line_alive(
    open_site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.api import sse

    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    async with open_site("Answer: 7", behave=lambda _, __: Behaviour(delay_s=0.1)) as site:
        body = {"model": "toy", "messages": HI, "stream": True}
        text = (await site.client.post("/v1/chat/completions", json=body)).text
        assert text.startswith(": keep-alive\n\n")
        assert text.endswith("data: [DONE]\n\n")


async def test_metrics_count_what_happened_and_have_no_text_in_them(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7") as site:
        body = {"model": "toy", "query": "a very secret question", "effort": "high"}
        charged = (await site.client.post("/v1/reason", json=body)).json()["receipt"]["tokens"]["charged"]
        await site.client.post("/v1/reason", json=body | {"model": "no-such-model-xyz"})
        text = (await site.client.get("/metrics")).text
        assert 'pondera_queries_total{model="toy",status="completed",technique="best_of_n"} 1.0' in text
        assert 'pondera_queries_refused_total{code="model_not_found",model="unknown"} 1.0' in text
        phases = dict.fromkeys(("prompt", "generated", "verifier"), 0.0)
        for line in text.splitlines():
            for phase in phases:
                if line.startswith(f'pondera_tokens_total{{model="toy",phase="{phase}"}}'):
                    phases[phase] = float(line.split()[-1])
        assert sum(phases.values()) == charged
        assert "secret" not in text
        assert "no-such-model-xyz" not in text
        assert site.tenant.id not in text


async def test_a_request_id_comes_back(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site:
        assert (await site.client.get("/healthz", headers={"x-request-id": "abc-1"})).headers[
            "x-request-id"
        ] == "abc-1"
        odd = await site.client.get("/healthz", headers={"x-request-id": "a b\x7f"})
        assert odd.headers["x-request-id"].startswith("req_")


async def test_case_65_the_clients_trace_is_the_parent_and_is_not_ended(
    open_site: Callable[..., Any],
) -> None:
    async with open_site("Answer: 7") as site:
        trace = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        await site.client.post("/v1/reason", json={"model": "toy", "query": "hi"}, headers=headers)
        assert await site.idle()
        spans = site.spans.get_finished_spans()
        assert {f"{s.context.trace_id:032x}" for s in spans} == {trace}
        roots = [s for s in spans if f"{s.parent.span_id:016x}" == "b7ad6b7169203331"]
        assert len(roots) == 1
