"""Health, readiness, metrics and the list of models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from orchestrator.errors import unknown_model
from orchestrator.service import Orchestrator
from services.api.encoding import JsonAnswer
from services.api.reason_schema import ModelView
from services.telemetry.metrics import Metrics

router = APIRouter()


@router.get("/healthz", summary="The process answers")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz", summary="Every model has a ready engine and the ledger can be reached")
async def readyz(request: Request) -> JsonAnswer:
    orchestrator: Orchestrator = request.app.state.orchestrator
    models = await orchestrator.ready()
    ledger = await request.app.state.ledger_ready()
    ready = ledger and all(models.values())
    body = {"ready": ready, "models": models, "ledger": ledger}
    return JsonAnswer(body, status_code=200 if ready else 503, headers={} if ready else {"Retry-After": "5"})


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    orchestrator: Orchestrator = request.app.state.orchestrator
    collected: Metrics = request.app.state.metrics
    collected.observe_models(await orchestrator.ready(), orchestrator.models)
    body, content_type = collected.render()
    return Response(body, headers={"content-type": content_type})


@router.get("/v1/models", summary="The models served here")
async def models(request: Request) -> dict[str, Any]:
    orchestrator: Orchestrator = request.app.state.orchestrator
    data = [ModelView(id=m.name, created=m.created).model_dump() for m in orchestrator.models.values()]
    return {"object": "list", "data": data}


@router.get("/v1/models/{name:path}", summary="One model")
async def model(name: str, request: Request) -> ModelView:
    orchestrator: Orchestrator = request.app.state.orchestrator
    found = orchestrator.models.get(name)
    if found is None:
        raise unknown_model(name, list(orchestrator.models))
    return ModelView(id=found.name, created=found.created)
