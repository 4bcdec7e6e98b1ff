"""What the query routes share: starting a search, and waiting for it while the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import Request
from fastapi.responses import Response

from orchestrator.handle import SearchHandle
from orchestrator.outcome import Outcome
from orchestrator.request import ReasonRequest
from orchestrator.service import Orchestrator
from services.api.disconnect import ends_with_client
from services.api.errors import query_error_response
from services.api.messages import check_messages
from services.api.receipt_schema import PonderaAnswer

_TRACE_HEADERS = ("traceparent", "tracestate", "baggage")


async def start(request: Request, query: ReasonRequest, *, live: bool) -> SearchHandle:
    """Start a search for the authenticated tenant, under the client's trace if it sent one."""
    orchestrator: Orchestrator = request.app.state.orchestrator
    check_messages(query.messages, request.app.state.limits.max_messages)
    carrier = {h: request.headers[h] for h in _TRACE_HEADERS if h in request.headers}
    return await orchestrator.start(query, request.state.tenant, carrier=carrier, live=live)


async def answer_json(
    request: Request, handle: SearchHandle, render: Callable[[Outcome], Response]
) -> Response:
    """The outcome, rendered; a failed one as an error with receipt. A client that leaves ends the search."""
    async with ends_with_client(request.receive, handle) as gone:
        result = asyncio.create_task(handle.result())
        left = asyncio.create_task(gone.wait())
        try:
            await asyncio.wait({result, left}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                return Response(status_code=499)
            if result.cancelled():
                raise RuntimeError("the search was cancelled from within")
            outcome = result.result()
        finally:
            left.cancel()
            result.cancel()
    if outcome.error is not None:
        extra = {"pondera": PonderaAnswer.of(outcome).model_dump(mode="json")}
        response: Response = query_error_response(outcome.error, extra)
    else:
        response = render(outcome)
    response.headers["x-pondera-search-id"] = handle.search_id
    return response
