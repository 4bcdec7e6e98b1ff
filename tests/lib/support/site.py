"""The REST application on a loopback port, over scripted models and a real store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from engines.scripted import ScriptedEngine
from guards.budget import Budget
from guards.ledger import Ledger
from guards.store import StoreClient, StoreUnavailable
from guards.tenants import Tenant, TenantStore
from orchestrator.catalog import ServedModel
from orchestrator.service import Orchestrator
from orchestrator.settings import LimitSettings
from services.api.app import create_app
from services.http_server import HttpServer
from services.listen import bind
from services.telemetry.metrics import Metrics
from support.world import memory_tracer


@dataclass
class Site:
    """A served application and what a test needs to look behind it."""

    url: str
    key: str
    tenant: Tenant
    tenants: TenantStore
    ledger: Ledger
    engine: ScriptedEngine
    model: ServedModel
    orchestrator: Orchestrator
    client: httpx.AsyncClient
    spans: Any

    async def idle(self, within_s: float = 5.0) -> bool:
        """Whether nothing is running, reserved or in flight, at the latest after `within_s` seconds."""
        for _ in range(round(within_s / 0.02)):
            usage = await self.ledger.usage(self.tenant.id, self.tenant.budget)
            busy = (
                self.orchestrator.searches
                + len(self.engine.running)
                + usage["day"].reserved
                + await self.ledger.in_flight(self.tenant.id)
            )
            if not busy:
                return True
            await asyncio.sleep(0.02)
        return False


@contextlib.asynccontextmanager
async def serve(
    store: StoreClient, models: Sequence[tuple[ServedModel, ScriptedEngine]], budget: Budget, **limits: Any
) -> AsyncIterator[Site]:
    """Serve until the block ends. The first model is the one that `Site` shows."""
    tenants, ledger, metrics = TenantStore(store), Ledger(store), Metrics()
    tenant, key = await tenants.add("acme", budget)
    provider, spans = memory_tracer()
    settings = LimitSettings(**limits)
    orchestrator = Orchestrator(
        {m.name: m for m, _ in models},
        ledger,
        server_secret=bytes(32),
        limits=settings,
        tracer=provider.get_tracer("test"),
        observer=metrics,
    )

    async def ready() -> bool:
        try:
            await store.ping()
        except StoreUnavailable:
            return False
        return True

    app = create_app(orchestrator, tenants, metrics, settings, ready)
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        server = HttpServer(app)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=20) as client:
            model, engine = models[0]
            yield Site(url, key, tenant, tenants, ledger, engine, model, orchestrator, client, spans)
        await orchestrator.close()
        server.stop()
        await task
