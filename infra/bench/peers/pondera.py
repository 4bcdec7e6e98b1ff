"""Pondera inside the benchmark's process, reached by a driver over HTTP on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from guards.budget import Budget
from guards.tenants import TenantStore
from infra.bench.server import running
from orchestrator.settings import Settings
from services.telemetry.metrics import Metrics


class Pondera:
    """The service that is up."""

    def __init__(self, url: str, tenants: TenantStore) -> None:
        self.url = url
        self._tenants = tenants
        self._made = 0

    async def new_key(self) -> str:
        """A key of a new tenant. Nothing in the engine's prefix cache is visible to it: it starts cold."""
        self._made += 1
        _, key = await self._tenants.add(f"bench-{self._made}", Budget())
        return key


@contextlib.asynccontextmanager
async def pondera(settings: Settings) -> AsyncIterator[Pondera]:
    """Serve these settings with a state directory of its own, but the model files of theirs."""
    async with running(settings, Metrics()) as (url, tenants):
        yield Pondera(url, tenants)
