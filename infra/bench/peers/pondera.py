"""Pondera inside the benchmark's process, reached by a driver over HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from opentelemetry.trace import NoOpTracerProvider

from guards.budget import Budget
from guards.tenants import TenantStore
from orchestrator.deployment import deploy
from orchestrator.settings import Settings
from services.api.app import create_app
from services.cli.progress import progress
from services.listen import bind
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
    metrics = Metrics()
    tracer = NoOpTracerProvider().get_tracer("bench")
    with tempfile.TemporaryDirectory(prefix="pondera-bench-") as folder, bind("127.0.0.1", 0) as listener:
        state = Path(folder)
        models = settings.state_dir.resolve() / "models"
        models.mkdir(parents=True, exist_ok=True)
        (state / "models").symlink_to(models)
        with progress() as report:
            context = deploy(
                settings.model_copy(update={"state_dir": state}),
                tracer=tracer,
                observer=metrics,
                progress=report,
            )
            up = await context.__aenter__()
        try:
            app = create_app(up.orchestrator, up.tenants, metrics, settings.limits, up.store_ready)
            listener.listen(1024)
            server = uvicorn.Server(
                uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=75)
            )
            task = asyncio.create_task(server.serve(sockets=[listener]))
            yield Pondera(f"http://127.0.0.1:{listener.getsockname()[1]}", up.tenants)
            server.should_exit = True
            await task
        finally:
            await context.__aexit__(None, None, None)
