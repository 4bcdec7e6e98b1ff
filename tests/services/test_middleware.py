"""Request ids, room, and bodies that do not come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engines.scripted import Behaviour
from support.site import Site

CHAT = "/v1/chat/completions"
REASON = "/v1/reason"
QUERY = {"model": "toy", "query": "hi"}


def fault(*_: Any, **__: Any) -> Any:
    raise KeyError("a secret detail")


@pytest.mark.parametrize("given", [None, "abc-1"])
async def test_a_500_has_a_request_id_that_its_line_in_the_log_has_too(
    open_site: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: str | None,
) -> None:
    async with open_site("x") as site:
        monkeypatch.setattr(site.orchestrator, "start", fault)
        headers = {} if given is None else {"x-request-id": given}
        response = await site.client.post(REASON, json=QUERY, headers=headers)
        assert response.status_code == 500
        assert response.json() == {
            "error": {
                "message": "internal error",
                "type": "server_error",
                "param": None,
                "code": "internal_error",
            }
        }
        request_id = response.headers["x-request-id"]
        assert request_id == given or request_id.startswith("req_")
        lines: list[Any] = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert [r.request_id for r in lines] == [request_id]
        assert request_id in lines[0].getMessage()
        assert lines[0].exc_info is not None


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/nothing", 404), (REASON, 405)])
async def test_every_answer_has_a_request_id(open_site: Callable[..., Any], path: str, status: int) -> None:
    async with open_site("x") as site:
        response = await site.client.get(path)
        assert response.status_code == status
        assert response.headers.get_list("x-request-id")[0].startswith("req_")
        assert len(response.headers.get_list("x-request-id")) == 1


async def test_requests_beyond_the_limit_get_a_503_error_object_and_health_still_answers(
    open_site: Callable[..., Any],
) -> None:
    async with open_site(
        "x", behave=lambda _, __: Behaviour(hang_after=1), limits={"max_concurrent_requests": 2}
    ) as site:
        running = [asyncio.create_task(site.client.post(REASON, json=QUERY)) for _ in range(2)]
        while site.orchestrator.searches < 2:
            await asyncio.sleep(0.005)
        for path in (REASON, CHAT):
            response = await site.client.post(path, json=QUERY)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert response.headers["x-request-id"]
            error = response.json()["error"]
            assert (error["code"], error["type"]) == ("overloaded", "server_error")
            assert "2 requests" in error["message"]
        assert (await site.client.get("/healthz")).status_code == 200
        for task in running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert await site.idle()
        assert (await site.client.get("/v1/models")).status_code == 200


async def test_a_request_that_fails_gives_its_room_back(
    open_site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_site("x", limits={"max_concurrent_requests": 1}) as site:
        with monkeypatch.context() as patch:
            patch.setattr(site.orchestrator, "start", fault)
            assert (await site.client.post(REASON, json=QUERY)).status_code == 500
        assert (await site.client.post(REASON, json=QUERY)).status_code == 200


@contextlib.asynccontextmanager
async def by_hand(site: Site) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a request has begun whose body is still to come."""
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"POST {REASON} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.key}\r\n".encode())
        writer.write(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
        async with asyncio.timeout(5):
            yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("pieces", [(), (b'{"model"', b": ")])
async def test_a_body_that_stalls_is_a_408_and_the_connection_is_closed(
    open_site: Callable[..., Any], pieces: tuple[bytes, ...]
) -> None:
    async with open_site("x", limits={"body_timeout_s": 0.1, "max_concurrent_requests": 1}) as site:
        async with by_hand(site) as (reader, writer):
            writer.writelines(pieces)
            answer = await reader.read()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head.lower()
        assert b"x-request-id: req_" in head
        assert b'"code":"body_timeout"' in body
        assert b"0.1 s" in body
        assert (await site.client.post(REASON, json=QUERY)).status_code == 200


async def test_a_body_that_drips_is_a_408_too(open_site: Callable[..., Any]) -> None:
    async with (
        open_site("x", limits={"body_timeout_s": 0.2}) as site,
        by_hand(site) as (reader, writer),
    ):

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
        dripping.cancel()


async def test_a_search_may_take_longer_than_a_body(open_site: Callable[..., Any]) -> None:
    async with open_site(
        "Answer: 7",
        behave=lambda _, __: Behaviour(chunk_tokens=4, delay_s=0.1),
        limits={"body_timeout_s": 0.1},
    ) as site:
        response = await site.client.post(REASON, json=QUERY | {"effort": "low"})
        assert (response.status_code, response.json()["answer"]) == (200, "7")
        assert response.json()["receipt"]["elapsed_ms"] > 100
