"""`POST /v1/reason`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from orchestrator.outcome import Outcome
from services.api.answering import answer_json, start
from services.api.body import JsonRoute
from services.api.encoding import JsonAnswer
from services.api.reason_schema import ReasonAnswer, ReasonBody

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/reason",
    summary="A reasoning query with its receipt",
    response_model=ReasonAnswer,
)
async def create(body: ReasonBody, request: Request) -> Response:
    handle = await start(request, body.core(), live=False)

    def render(outcome: Outcome) -> JsonAnswer:
        return JsonAnswer(ReasonAnswer.from_outcome(outcome).model_dump(mode="json"))

    return await answer_json(request, handle, render)
