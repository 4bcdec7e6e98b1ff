"""The whole service inside the benchmark's process, reached over HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from opentelemetry.trace import NoOpTracerProvider

from guards.budget import Budget
from guards.tenants import TenantStore
from orchestrator.deployment import deploy
from orchestrator.settings import Settings, load
from services.api.app import create_app
from services.cli.progress import progress
from services.http_server import HttpServer
from services.listen import bind
from services.telemetry.metrics import Metrics


@dataclass
class Recording(Metrics):
    """The service's own metrics, and each engine call's added seconds by kind."""

    added: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def on_call(self, model: str, kind: str, added_s: float | None) -> None:
        super().on_call(model, kind, added_s)
        if added_s is not None:
            self.added.append((kind, added_s))


def settings_for(model: str) -> Settings:
    """The settings that `pondera serve` would take, with this model alone."""
    settings = load(None)
    return settings.model_copy(update={"models": tuple(m for m in settings.models if m.name == model)})


@contextlib.asynccontextmanager
async def running(settings: Settings, metrics: Metrics) -> AsyncIterator[tuple[str, TenantStore]]:
    """Serve these settings with a state directory of its own; yields the URL and the tenants.

    Model files are taken from the settings' own state directory, so that they are made only once.
    """
    tracer = NoOpTracerProvider().get_tracer("bench")
    with tempfile.TemporaryDirectory(prefix="pondera-bench-") as folder, bind("127.0.0.1", 0) as listener:
        state = Path(folder)
        models = settings.state_dir.resolve() / "models"
        models.mkdir(parents=True, exist_ok=True)
        (state / "models").symlink_to(models)
        settings = settings.model_copy(update={"state_dir": state})
        with progress() as report:
            context = deploy(settings, tracer=tracer, observer=metrics, progress=report)
            up = await context.__aenter__()
        try:
            app = create_app(up.orchestrator, up.tenants, metrics, settings.limits, up.store_ready)
            listener.listen(1024)
            server = HttpServer(app)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", up.tenants
            server.stop()
            await task
        finally:
            await context.__aexit__(None, None, None)


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Recording]]:
    """As `running`; yields an authorised client and the metrics."""
    metrics = Recording()
    async with running(settings, metrics) as (url, tenants):
        _, key = await tenants.add("bench", Budget())
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600, trust_env=False) as client:
            yield client, metrics
