"""Every way in which a stream can end, and what is left behind: nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest

from engines.scripted import Behaviour
from orchestrator.errors import QueryError
from orchestrator.handle import SearchHandle
from services.api import sse
from services.api.sse import EventStream
from support.site import Site

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
Send = Callable[[dict[str, Any]], Any]


class Line:
    """One connection as an ASGI server shows it, with a running search behind it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.stops: list[str] = []
        self.closed = False
        self.left = asyncio.Event()
        self.search: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.handle = SearchHandle("srch-1", "toy", True, self._stop)
        self.handle.bind(asyncio.ensure_future(self._run()))

    async def _run(self) -> Any:
        return await self.search

    def _stop(self, reason: str) -> None:
        self.stops.append(reason)
        if not self.search.done():
            self.search.set_result(None)

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def closing(
        self, events: AsyncGenerator[dict[str, Any], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async for event in events:
                yield event
        finally:
            self.closed = True

    async def serve(self, events: AsyncGenerator[dict[str, Any], None], send: Send | None = None) -> None:
        async with asyncio.timeout(5):
            stream = EventStream(self.closing(events), self.handle)
            await stream({"type": "http"}, self.receive, send or self.send)  # type: ignore[arg-type]

    @property
    def body(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent).decode()

    @property
    def complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", False)


def quiet() -> bool:
    """Whether no task but this one's is left."""
    return len(asyncio.all_tasks()) == 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_fault_in_the_middle_ends_the_stream_with_an_error_event_and_the_search() -> None:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"a": 1}
        raise KeyError("secret detail")

    line = Line()
    await line.serve(events())
    first, error, done, rest = line.body.split("\n\n")
    assert (first, done, rest) == ('data: {"a":1}', "data: [DONE]", "")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "secret" not in line.body
    assert line.complete
    assert line.stops == ["client_gone"]
    assert line.closed
    await settle()
    assert quiet()


async def test_a_fault_before_the_first_event_is_a_500() -> None:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        raise KeyError("x")
        yield {}

    line = Line()
    await line.serve(events())
    assert line.sent[0]["status"] == 500
    assert json.loads(line.body)["error"]["type"] == "server_error"
    assert line.stops
    assert line.closed


async def test_an_event_that_is_no_json_is_an_error_event() -> None:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"a": 1}
        yield {"a": object()}

    line = Line()
    await line.serve(events())
    assert "internal_error" in line.body
    assert line.body.endswith("data: [DONE]\n\n")
    assert line.closed


async def test_a_search_that_was_cancelled_from_within_ends_the_stream() -> None:
    line = Line()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"a": 1}
        await line.handle.result()

    line.search.cancel()
    await line.serve(events())
    assert "internal_error" in line.body
    assert line.complete


async def test_a_query_that_fails_late_is_an_error_event_and_early_a_status() -> None:
    error = QueryError("no engine", code="engine_unavailable", status=503, retry_after_s=5)

    async def late() -> AsyncGenerator[dict[str, Any], None]:
        yield {"a": 1}
        raise error

    async def early() -> AsyncGenerator[dict[str, Any], None]:
        raise error
        yield {}

    line = Line()
    await line.serve(late())
    assert '"code":"engine_unavailable"' in line.body
    assert line.body.endswith("data: [DONE]\n\n")
    line = Line()
    await line.serve(early())
    assert line.sent[0]["status"] == 503
    assert (b"retry-after", b"5") in line.sent[0]["headers"]


async def test_a_client_that_leaves_before_the_first_event_ends_the_search_and_hears_nothing() -> None:
    line = Line()
    waiting = asyncio.Event()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        waiting.set()
        await asyncio.Event().wait()
        yield {}

    task = asyncio.create_task(line.serve(events()))
    await waiting.wait()
    line.left.set()
    await task
    assert line.sent == []
    assert line.stops[0] == "client_gone"
    assert line.closed
    await settle()
    assert quiet()


@pytest.mark.parametrize("fault", [OSError("broken pipe"), RuntimeError("protocol")])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_send_that_fails_ends_the_search_and_closes_the_events(fault: Exception, at: int) -> None:
    line = Line()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        while True:
            yield {"a": 1}

    async def send(message: dict[str, Any]) -> None:
        if len(line.sent) == at:
            raise fault
        line.sent.append(message)

    if isinstance(fault, OSError):
        await line.serve(events(), send)
    else:
        with pytest.raises(RuntimeError, match="protocol"):
            await line.serve(events(), send)
    assert line.stops == ["client_gone"]
    assert line.closed
    await settle()
    assert quiet()


async def test_a_client_that_takes_nothing_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SEND_S", 0.01)
    line = Line()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"a": 1}

    async def send(_: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    await line.serve(events(), send)
    assert line.stops == ["client_gone"]
    assert line.closed


async def test_a_connection_that_cannot_be_watched_counts_as_gone() -> None:
    line = Line()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.Event().wait()
        yield {}

    async def receive() -> dict[str, Any]:
        raise RuntimeError("protocol")

    line.receive = receive  # type: ignore[method-assign]
    await line.serve(events())
    assert line.stops[0] == "client_gone"
    assert line.closed


async def test_a_response_that_is_cancelled_ends_its_search() -> None:
    line = Line()
    waiting = asyncio.Event()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        waiting.set()
        await asyncio.Event().wait()
        yield {}

    task = asyncio.create_task(line.serve(events()))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert line.stops == ["client_gone"]
    assert line.closed


async def read_a_piece_and_leave(site: Site, body: dict[str, Any]) -> str:
    got = ""
    async with (
        httpx.AsyncClient(base_url=site.url, headers=site.client.headers, trust_env=False) as client,
        client.stream("POST", CHAT, json=body) as response,
    ):
        assert response.status_code == 200
        async for piece in response.aiter_text():
            got += piece
            if '"content"' in got:
                break
    return got


async def test_case_66_a_cancelled_stream_leaves_one_whole_trace_with_what_it_had_made(
    open_site: Callable[..., Any],
) -> None:
    def hangs(_: Any, __: int) -> Behaviour:
        return Behaviour(chunk_tokens=2, hang_after=5)

    async with open_site("one two three", behave=hangs) as site:
        body = {"model": "toy", "messages": HI, "stream": True, "reasoning_effort": "low"}
        got = await read_a_piece_and_leave(site, body)
        assert '"content":"o"' in got
        assert await site.idle()
        spans = site.spans.get_finished_spans()
        assert len({s.context.trace_id for s in spans}) == 1
        roots = [s for s in spans if s.parent is None]
        assert len(roots) == 1
        ids = {s.context.span_id for s in spans}
        assert all(s.parent is None or s.parent.span_id in ids for s in spans)
        (root,) = roots
        calls = [s for s in spans if s is not root]
        assert [s.name for s in calls] == ["generate toy"]
        assert root.attributes["pondera.cancelled"] is True
        assert root.attributes["pondera.stop_reason"] == "client_gone"
        assert calls[0].attributes["pondera.cancelled"] is True
        partial = calls[0].attributes["gen_ai.usage.output_tokens"]
        assert 1 <= partial <= 5
        assert root.attributes["gen_ai.usage.output_tokens"] == partial
        assert root.end_time >= calls[0].end_time
        assert all(s.end_time is not None for s in spans)


async def test_case_66_with_many_samples_every_call_is_in_the_trace(open_site: Callable[..., Any]) -> None:
    def behave(_: Any, n: int) -> Behaviour:
        return Behaviour(chunk_tokens=2, hang_after=3)

    async with open_site("one two three", behave=behave) as site:
        body = {"model": "toy", "messages": HI, "stream": True, "reasoning_effort": "high"}
        async with httpx.AsyncClient(
            base_url=site.url, headers=site.client.headers, trust_env=False
        ) as client:
            task = asyncio.create_task(client.post(CHAT, json=body))
            while len(site.engine.running) < 16:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await site.idle()
        spans = site.spans.get_finished_spans()
        (root,) = [s for s in spans if s.parent is None]
        calls = [s for s in spans if s is not root]
        assert len(calls) == 16
        assert {s.parent.span_id for s in calls} == {root.context.span_id}
        assert {s.context.trace_id for s in spans} == {root.context.trace_id}
        assert all(s.attributes["pondera.cancelled"] for s in spans)
        made = sum(s.attributes["gen_ai.usage.output_tokens"] for s in calls)
        assert made == root.attributes["gen_ai.usage.output_tokens"] >= 16
