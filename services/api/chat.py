"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response

from orchestrator.handle import SearchHandle
from orchestrator.outcome import Outcome
from services.api import chat_schema as schema
from services.api.answering import answer_json, start
from services.api.body import JsonRoute
from services.api.encoding import JsonAnswer
from services.api.receipt_schema import PonderaAnswer
from services.api.sse import EventStream

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions", summary="A chat completion, thought about as hard as asked")
async def create(body: schema.ChatRequest, request: Request) -> Response:
    handle = await start(request, body.core(), live=body.stream)
    if body.stream:
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(handle, include_usage), handle)

    def render(outcome: Outcome) -> JsonAnswer:
        return JsonAnswer(schema.completion(outcome, created=handle.created))

    return await answer_json(request, handle, render)


async def _events(handle: SearchHandle, include_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """Chunks in OpenAI's order: role, text, finish reason, usage. Text comes live for a single sample."""
    common: dict[str, Any] = {"created": handle.created, "model": handle.model}
    if include_usage:
        common["usage"] = None
    opened = False

    def text(piece: str) -> dict[str, Any]:
        nonlocal opened
        delta: dict[str, Any] = {"content": piece} if opened else {"role": "assistant", "content": piece}
        opened = True
        return schema.chunk(handle.search_id, delta=delta, **common)

    if handle.streams_text:
        async with aclosing(cast("AsyncGenerator[str, None]", handle.texts())) as pieces:
            async for piece in pieces:
                yield text(piece)
    outcome = await handle.result()
    if outcome.error is not None:
        raise outcome.error
    if not opened:
        yield text(outcome.text)
    yield schema.chunk(
        handle.search_id,
        delta={},
        finish=schema.finish_reason(outcome),
        pondera=PonderaAnswer.of(outcome).model_dump(mode="json"),
        **common,
    )
    if include_usage:
        yield schema.chunk(handle.search_id, **common | {"usage": schema.usage(outcome)})
