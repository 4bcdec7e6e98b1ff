"""`pondera serve`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.deployment import Deployment, deploy
from orchestrator.settings import Settings, effective
from services.api.app import create_app
from services.cli.announce import announcement, open_door
from services.cli.options import Config, Set, StateDir, fail, settings_or_exit
from services.cli.progress import progress
from services.http_server import HttpServer
from services.listen import bind
from services.telemetry.metrics import Metrics
from services.telemetry.tracing import Tracing

_log = logging.getLogger(__name__)
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
        asyncio.run(_until_stopped(settings, config))
    except Exception as e:
        # Ray and the engines have errors of many kinds; whoever starts a server needs to read the message.
        _log.debug("the server ended", exc_info=True)
        fail(str(e) or type(e).__name__)


async def _until_stopped(settings: Settings, config: Path | None) -> None:
    """Serve until a signal comes, also while still starting; either way all is taken down in order."""
    serving = asyncio.create_task(_serve(settings, config))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _serve(settings: Settings, config: Path | None) -> None:
    metrics, tracing = Metrics(), Tracing(os.environ)
    try:
        # Bound first, so that a port that is taken is known before the slow part.
        with bind(settings.host, settings.port) as listener:
            with progress() as report:
                context = deploy(settings, tracer=tracing.tracer, observer=metrics, progress=report)
                deployment = await context.__aenter__()
            try:
                await _listen(settings, config, deployment, metrics, listener)
            finally:
                await context.__aexit__(None, None, None)
    finally:
        tracing.close()


async def _listen(
    settings: Settings,
    config: Path | None,
    deployment: Deployment,
    metrics: Metrics,
    listener: socket.socket,
) -> None:
    app = create_app(
        deployment.orchestrator, deployment.tenants, metrics, settings.limits, deployment.store_ready
    )

    async def announce() -> None:
        # Not before, so that a start that fails shows no key that nobody sees again.
        door = await open_door(deployment.tenants)
        print(announcement(settings, config, listener.getsockname()[1], door), flush=True)

    server = HttpServer(app, grace_s=_GRACE_S, on_started=announce)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(task)
    finally:
        # Searches end first, so that waiting clients get their partial answers.
        await deployment.orchestrator.close()
        server.stop()
        await asyncio.wait({task}, timeout=_GRACE_S + 2)
