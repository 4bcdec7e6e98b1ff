"""Brings up all that a server needs, in order, and takes it down again in the reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from opentelemetry.trace import Tracer

from engines.models import ModelFiles, prepare
from engines.protocol import Engine
from engines.ray_engine import start_engine
from engines.spec import EngineSpec
from engines.tokenizer import ModelTokenizer
from guards.embedded import EmbeddedStoreError, StoreHandle, connect_or_start
from guards.ledger import Ledger
from guards.salt import load_or_create_secret
from guards.store import StoreClient, StoreUnavailable, connect
from guards.tenants import TenantStore
from orchestrator.catalog import ModelDefaults, ServedModel
from orchestrator.gauge import Gauge
from orchestrator.processes import adopt_orphans, collect_orphans, descendants, end_descendants
from orchestrator.scoring import ProcessReward
from orchestrator.service import Observer, Orchestrator
from orchestrator.settings import ModelSettings, Settings
from orchestrator.verifiers.generative import GenerativeReward
from orchestrator.verifiers.port import Scorer
from search.extract import ThinkingMarkers

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

Progress = Callable[[str, float], None]
"""Told of a step's name and how far it is, 0..1."""


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
            stack.push_async_callback(_cancelled, keeper)
        stack.push_async_callback(client.aclose)
        yield client


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    while not task.done():
        # Again and again, since a library on the way may take a cancellation for a fault of its own.
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)


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
        models = await _start_models(settings, files, stack, progress)
        orchestrator = Orchestrator(
            models,
            Ledger(store),
            server_secret=secret,
            limits=settings.limits,
            tracer=tracer,
            observer=observer,
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
        _end_log_monitor()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _end_log_monitor() -> None:
    """Ray starts a process that copies workers' logs to drivers, also when told not to; it is never idle."""
    for process in descendants():
        with contextlib.suppress(psutil.Error):
            if any(part.endswith("log_monitor.py") for part in process.cmdline()):
                process.terminate()
                process.wait(5)


def _stop_ray(settings: Settings, spare: list[int]) -> None:
    ray.shutdown()
    if settings.ray.address is None:
        _log.debug("ended %d processes", end_descendants(spare=spare))


async def _start_models(
    settings: Settings, files: dict[str, ModelFiles], stack: AsyncExitStack, progress: Progress
) -> dict[str, ServedModel]:
    specs = [(m, i, _spec(m, files[m.name], i)) for m in settings.models for i in range(m.replicas)]
    started = 0

    async def start(spec: EngineSpec) -> Engine:
        nonlocal started
        engine = await start_engine(spec)
        stack.push_async_callback(engine.close)
        started += 1
        progress("start engines", started / len(specs))
        return engine

    progress("start engines", 0.0)
    starts = [asyncio.create_task(start(spec)) for _, _, spec in specs]
    try:
        engines = await asyncio.gather(*starts)
    except BaseException:
        for task in starts:
            task.cancel()
        await asyncio.wait(starts)
        raise
    by_model: dict[str, list[Engine]] = {m.name: [] for m in settings.models}
    for (model, _, _), engine in zip(specs, engines, strict=True):
        by_model[model.name].append(engine)
    return {m.name: await _serve(m, files[m.name], by_model[m.name]) for m in settings.models}


def _spec(model: ModelSettings, files: ModelFiles, replica: int) -> EngineSpec:
    return EngineSpec(
        name=f"{model.name.replace('/', '-')}-{replica}",
        model_path=str(files.path.resolve()),
        device=model.device,
        dtype=model.dtype,
        max_total_tokens=model.max_total_tokens,
        max_running_requests=model.max_running_requests,
        threads=model.threads,
        context_tokens=model.context_tokens,
        stream_interval=model.stream_interval,
        gpus=1.0 if model.device == "cuda" else 0.0,
        engine_args=model.engine_args,
    )


async def _serve(model: ModelSettings, files: ModelFiles, engines: list[Engine]) -> ServedModel:
    tokenizer = await asyncio.to_thread(ModelTokenizer, files.path)
    info = await engines[0].info()
    return ServedModel(
        name=model.name,
        engines=tuple(engines),
        tokenizer=tokenizer,
        defaults=ModelDefaults(model.max_new_tokens, model.temperature),
        context_tokens=info.context_tokens,
        kv_tokens=info.kv_tokens_total,
        gauge=Gauge(info.max_running * len(engines), info.kv_tokens_total * len(engines)),
        scorer=_scorer(files, tokenizer),
        thinking=_thinking(model, files),
        step_ends=model.step_ends,
        step_tokens=model.step_tokens,
        created=int(time.time()),
    )


def _thinking(model: ModelSettings, files: ModelFiles) -> ThinkingMarkers | None:
    if model.thinking is not None:
        return ThinkingMarkers(model.thinking.open, model.thinking.close, model.thinking.starts_inside)
    return None if files.thinking is None else ThinkingMarkers(*files.thinking)


def _scorer(files: ModelFiles, tokenizer: ModelTokenizer) -> Scorer | None:
    form = files.process_reward
    if form is None:
        return None
    right, wrong = form.labels
    return GenerativeReward(
        ProcessReward(
            suffix_ids=tokenizer.encode(form.suffix),
            right_id=tokenizer.token_id(right),
            wrong_id=tokenizer.token_id(wrong),
            strip_ids=frozenset(tokenizer.encode(form.strip)) | frozenset(tokenizer.eos_ids),
        )
    )
