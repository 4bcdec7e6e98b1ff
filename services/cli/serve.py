"""`pondera serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from engines.models import ModelPreparationError
from engines.protocol import EngineError
from guards.budget import Budget
from guards.embedded import EmbeddedStoreError
from guards.store import StoreUnavailable
from guards.tenants import TenantStore
from orchestrator.deployment import Deployment, deploy
from orchestrator.settings import Settings, effective
from services.api.app import create_app
from services.cli.options import Config, Set, StateDir, fail, settings_or_exit
from services.cli.progress import progress
from services.telemetry.metrics import Metrics
from services.telemetry.tracing import Tracing

FIRST_TENANT = "default"
_GRACE_S = 8


def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="0 picks a free one.")] = None,
    state_dir: StateDir = None,
    redis_url: Annotated[str | None, typer.Option(help="An external Redis-protocol server.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="A running Ray cluster.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug | info | warning | error")] = None,
    set_: Set = None,
) -> None:
    """Serve the API in the foreground until Ctrl-C or SIGTERM."""
    overrides = {
        "host": host,
        "port": port,
        "state_dir": state_dir,
        "redis_url": redis_url,
        "ray.address": ray_address,
        "log_level": log_level,
    }
    settings = settings_or_exit(config, overrides, set_)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for key, value in effective(settings):
        print(f"  {key} = {value}", file=sys.stderr)
    try:
        asyncio.run(_until_stopped(settings))
    except (
        EngineError,
        EmbeddedStoreError,
        ModelPreparationError,
        StoreUnavailable,
        ValueError,
        OSError,
    ) as e:
        fail(str(e))


async def _until_stopped(settings: Settings) -> None:
    """Serve until a signal comes, also while still starting; either way all is taken down in order."""
    serving = asyncio.create_task(_serve(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


class _Server(uvicorn.Server):
    """Leaves the signals to `_until_stopped`, which must also act before and after serving."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


async def _serve(settings: Settings) -> None:
    metrics, tracing = Metrics(), Tracing(os.environ)
    try:
        # Bound first, so that a port that is taken is known before the slow part.
        with _bind(settings.host, settings.port) as listener:
            with progress() as report:
                context = deploy(settings, tracer=tracing.tracer, observer=metrics, progress=report)
                deployment = await context.__aenter__()
            try:
                await _listen(settings, deployment, metrics, listener)
            finally:
                await context.__aexit__(None, None, None)
    finally:
        tracing.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {e.strerror}") from None
    return listener


async def _listen(
    settings: Settings, deployment: Deployment, metrics: Metrics, listener: socket.socket
) -> None:
    app = create_app(
        deployment.orchestrator, deployment.tenants, metrics, settings.limits, deployment.store_ready
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=1024,
        server_header=False,
    )
    key = await first_key(deployment.tenants)
    port = listener.getsockname()[1]
    server = _Server(config, lambda: _announce(settings, port, key))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(task)
    finally:
        # Searches end first, so that waiting clients get their partial answers.
        await deployment.orchestrator.close()
        server.should_exit = True
        await asyncio.wait({task}, timeout=_GRACE_S + 2)


async def first_key(tenants: TenantStore) -> str | None:
    """On the first start, adds the tenant `default` and returns its key; later None, since no key is kept."""
    if await tenants.list(limit=1):
        return None
    return (await tenants.add(FIRST_TENANT, Budget()))[1]


def _announce(settings: Settings, port: int, key: str | None) -> None:
    url = f"http://{settings.host}:{port}"
    print(f"\nPondera listens on {url}")
    if key is None:
        command = f"{Path(sys.argv[0]).name} tenants add-key {FIRST_TENANT}"
        print(f"The API key was shown on the first start; for another: {command}")
    else:
        print(f"API key of the tenant '{FIRST_TENANT}' (shown this once): {key}")
    shown = key or "$PONDERA_API_KEY"
    query = {"model": settings.models[0].name, "query": "Compute (47+38)*3-29.", "effort": "high"}
    print(f"\n  curl -s {url}/v1/reason -H 'Authorization: Bearer {shown}' \\")
    print(f"    -H 'Content-Type: application/json' -d '{json.dumps(query)}'\n", flush=True)
