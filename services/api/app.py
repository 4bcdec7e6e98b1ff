"""The REST application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI

from guards.tenants import TenantStore
from orchestrator.service import Orchestrator
from orchestrator.settings import LimitSettings
from services.api import chat, errors, reason, status
from services.api.middleware import Authentication, BodyLimit, Concurrency, RequestId
from services.telemetry.metrics import Metrics


def create_app(
    orchestrator: Orchestrator,
    tenants: TenantStore,
    metrics: Metrics,
    limits: LimitSettings,
    ledger_ready: Callable[[], Awaitable[bool]],
) -> FastAPI:
    """Build the application around a running orchestrator; it starts and stops nothing itself.

    Args:
        ledger_ready: whether the ledger's store can be reached; asked by `/readyz`.
    """
    app = FastAPI(
        title="Pondera",
        version="0.1.0",
        description="Test-time-compute reasoning orchestrator",
        # The pages of documentation load scripts from elsewhere; /openapi.json stays.
        docs_url=None,
        redoc_url=None,
    )
    app.state.orchestrator = orchestrator
    app.state.metrics = metrics
    app.state.limits = limits
    app.state.ledger_ready = ledger_ready
    errors.install(app)
    # The last one added is the outermost: ids for every answer, then room, then keys, then bodies.
    app.add_middleware(BodyLimit, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s)
    app.add_middleware(Authentication, authenticate=tenants.authenticate)
    app.add_middleware(Concurrency, limit=limits.max_concurrent_requests)
    app.add_middleware(RequestId)
    for router in (chat.router, reason.router, status.router):
        app.include_router(router)
    return app
