"""Brings up all that a server needs, in order, and takes it down again in the reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from opentelemetry.trace import Tracer

from engines.models import ModelFiles, prepare
from guards.embedded import EmbeddedStoreError, StoreHandle, connect_or_start
from guards.ledger import Ledger
from guards.salt import load_or_create_secret
from guards.store import StoreClient, StoreUnavailable, connect
from guards.tenants import TenantStore
from orchestrator.processes import adopt_orphans, collect_orphans, descendants, end_descendants, end_task
from orchestrator.service import Observer, Orchestrator
from orchestrator.serving import Progress, start_models, start_tools
from orchestrator.settings import ModelSettings, Settings

_log = logging.getLogger(__name__)

_STORE_CHECK_S = 2.0

# A local cluster with a handful of actors: Ray's periodic work, made for large ones, at a slower pace
# (measured on an idle machine: 3.7 % of a core before, 1.8 % after), and no usage reports.
_LOCAL_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_raylet_check_for_unexpected_worker_disconnect_interval_ms": "2000",
    "RAY_kill_idle_workers_interval_ms": "2000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_metrics_report_interval_ms": "60000",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_io_context_event_loop_lag_collection_interval_ms": "0",
}

_IDLERS = ("/log_monitor.py", "/autoscaler/_private/monitor.py", "/dashboard/dashboard.py")


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that is up."""

    orchestrator: Orchestrator
    tenants: TenantStore
    store: StoreClient

    async def store_ready(self) -> bool:
        """Whether the ledger's store can be reached."""
        try:
            await self.store.ping()
        except StoreUnavailable:
            return False
        return True


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[StoreClient]:
    """The store of these settings: the external one, or the embedded one, started if nobody runs it yet."""
    async with AsyncExitStack() as stack:
        if settings.redis_url is not None:
            client = connect(settings.redis_url.get_secret_value())
        else:
            handle = await asyncio.to_thread(connect_or_start, settings.state_dir)
            stack.callback(handle.close)
            client = connect(handle.url)
            keeper = asyncio.create_task(_keep_alive(client, handle))
            stack.push_async_callback(end_task, keeper)
        stack.push_async_callback(client.aclose)
        yield client


async def _keep_alive(client: StoreClient, handle: StoreHandle) -> None:
    """Start the embedded store again when it died, or when the command that had started it has ended."""
    while True:
        await asyncio.sleep(_STORE_CHECK_S)
        try:
            await client.ping()
        except StoreUnavailable:
            _log.warning("the embedded store is gone; starting it again")
            # Shielded, since a thread cannot be cancelled: it must not start a store after the shutdown.
            reviving = asyncio.ensure_future(asyncio.to_thread(handle.revive))
            try:
                await asyncio.shield(reviving)
            except asyncio.CancelledError:
                await asyncio.wait({reviving})
                raise
            except EmbeddedStoreError as e:
                _log.error("the embedded store did not start: %s", e)


def models_dir(settings: Settings) -> Path:
    return settings.state_dir / "models"


def prepare_model(settings: Settings, model: ModelSettings, progress: Progress) -> ModelFiles:
    """The files of a model, made if need be. Blocks; may take a minute the first time."""
    if model.path is not None:
        return ModelFiles(path=model.path, process_reward=None)
    assert model.source is not None
    source = model.source

    def tell(_: str, share: float) -> None:
        progress(f"prepare {source}", share)

    return prepare(source, models_dir(settings), tell)


@asynccontextmanager
async def deploy(
    settings: Settings, *, tracer: Tracer, observer: Observer, progress: Progress
) -> AsyncIterator[Deployment]:
    """Start store, Ray, engines and orchestrator; on leaving nothing of it is left running.

    Raises:
        EngineError: an engine did not start.
        EmbeddedStoreError, StoreUnavailable: the store cannot be reached.
        ModelPreparationError: the files of a model could not be made.
        ConnectionError, RuntimeError: Ray did not start.
        OSError: this is not Linux.
        ValueError: a model or an engine argument is not legal; the message names it.
    """
    adopt_orphans()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings))
        secret = await load_or_create_secret(store)
        files = {}
        for model in settings.models:
            files[model.name] = await asyncio.to_thread(prepare_model, settings, model, progress)
        collector = asyncio.create_task(collect_orphans())
        stack.callback(collector.cancel)
        progress("start Ray", 0.0)
        not_of_ray = [p.pid for p in descendants()]
        stack.callback(_stop_ray, settings, not_of_ray)
        _start_ray(settings)
        progress("start Ray", 1.0)
        models = await start_models(settings, files, stack, progress)
        tools = await start_tools(settings, stack)
        orchestrator = Orchestrator(
            models,
            Ledger(store),
            server_secret=secret,
            limits=settings.limits,
            tracer=tracer,
            observer=observer,
            tools=tools,
        )
        stack.push_async_callback(orchestrator.close)
        # A collection that walks all that was imported stalls every query for about a tenth of a second.
        gc.collect()
        gc.freeze()
        yield Deployment(orchestrator, TenantStore(store), store)


def _start_ray(settings: Settings) -> None:
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "pondera"}
    # Ray sets a SIGTERM handler of its own, which would end the process in the middle of anything.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if settings.ray.address is not None:
        ray.init(address=settings.ray.address, **common)
    else:
        for name, value in _LOCAL_RAY.items():
            os.environ.setdefault(name, value)
        ray.init(
            address="local",
            num_cpus=settings.ray.num_cpus,
            object_store_memory=settings.ray.object_store_bytes,
            include_dashboard=False,
            **common,
        )
        _end_idlers()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _end_idlers() -> None:
    """End Ray's processes that a local cluster of fixed size has no use for, and that are never idle.

    They copy workers' logs to drivers, size clusters, and count usage; Ray starts them also when told not to.
    """
    for process in descendants():
        with contextlib.suppress(psutil.Error):
            if any(part.endswith(_IDLERS) for part in process.cmdline()):
                # Not SIGTERM, which some of them report to the driver as a failure.
                process.kill()
                process.wait(5)


def _stop_ray(settings: Settings, spare: list[int]) -> None:
    ray.shutdown()
    if settings.ray.address is None:
        _log.debug("ended %d processes", end_descendants(spare=spare))
