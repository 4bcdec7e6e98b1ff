"""Takes queries: admission, plan, run, settlement, receipt."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from typing import Protocol

from opentelemetry.trace import Tracer

from guards.lease import LeaseKeeper
from guards.ledger import Ledger
from guards.ledger_types import Denied
from guards.salt import cache_salt
from guards.store import StoreUnavailable
from guards.tenants import Tenant
from orchestrator.admission import refusal
from orchestrator.catalog import ServedModel
from orchestrator.errors import (
    QueryError,
    engine_unavailable,
    ledger_unavailable,
    overloaded,
    shutting_down,
    unknown_model,
)
from orchestrator.outcome import Outcome, failure
from orchestrator.plan import Plan, make_plan
from orchestrator.receipt import Receipt, fixed_n_tokens, lines, settled, status_of
from orchestrator.request import ReasonRequest
from orchestrator.runner import RunLimits, SearchRun
from orchestrator.settings import LimitSettings
from orchestrator.tracing import QueryTrace
from search.contract import Branch
from search.log import Recorder, record

_log = logging.getLogger(__name__)
_LIVE_PIECES = 4096


class Observer(Protocol):
    """Told of what happened, for metrics. Must not block or raise."""

    def on_call(self, model: str, kind: str, added_s: float | None) -> None: ...

    def on_outcome(self, outcome: Outcome) -> None: ...

    def on_refused(self, model: str, code: str) -> None: ...


class SearchHandle:
    """A running query.

    Args:
        streams_text: the text of the answer comes piece by piece through `texts`.
    """

    def __init__(self, search_id: str, model: str, streams_text: bool, stop: Callable[[str], None]) -> None:
        self.search_id = search_id
        self.model = model
        self.streams_text = streams_text
        self.created = int(time.time())
        self.stop = stop
        self._texts: asyncio.Queue[str | None] = asyncio.Queue(_LIVE_PIECES)
        self._task: asyncio.Task[Outcome] | None = None

    def bind(self, task: asyncio.Task[Outcome]) -> None:
        self._task = task
        task.add_done_callback(lambda _: self._close_texts())

    def offer_text(self, piece: str) -> None:
        """Pass on a piece of the answer. A reader that falls thousands of pieces behind ends the query."""
        try:
            self._texts.put_nowait(piece)
        except asyncio.QueueFull:
            self.stop("slow_reader")

    def _close_texts(self) -> None:
        if self._texts.full():
            self._texts.get_nowait()
        self._texts.put_nowait(None)

    async def texts(self) -> AsyncIterator[str]:
        """Pieces of the answer's text until it ends; only for a handle that `streams_text`."""
        while (piece := await self._texts.get()) is not None:
            yield piece

    async def result(self) -> Outcome:
        """Wait for the end. Leaving this wait does not end the query; `stop` does."""
        assert self._task is not None
        return await asyncio.shield(self._task)

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done()


class Orchestrator:
    """The join of search, engines and guards.

    Args:
        models: served models by name.
        server_secret: key of the tenants' cache salts.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        ledger: Ledger,
        *,
        server_secret: bytes,
        limits: LimitSettings,
        tracer: Tracer,
        observer: Observer,
    ) -> None:
        self.models = models
        self._ledger = ledger
        self._secret = server_secret
        self._limits = limits
        self._tracer = tracer
        self._observer = observer
        self._running: dict[str, tuple[SearchHandle, asyncio.Task[Outcome]]] = {}
        self._admitting = 0
        self._closing = False

    @property
    def searches(self) -> int:
        """Queries running now."""
        return len(self._running)

    async def ready(self) -> dict[str, bool]:
        """Whether each model has a replica that can serve."""
        return {name: await model.ready() for name, model in self.models.items()}

    async def start(
        self,
        request: ReasonRequest,
        tenant: Tenant,
        *,
        carrier: Mapping[str, str],
        live: bool = False,
    ) -> SearchHandle:
        """Admit a query and start its search.

        Args:
            tenant: who pays.
            carrier: trace headers of the client.
            live: pass the text on while it is generated, where the technique draws a single sample.

        Raises:
            QueryError: refused, over budget, overloaded, or no engine or ledger to be had.
        """
        try:
            return await self._start(request, tenant, carrier, live)
        except QueryError as e:
            self._observer.on_refused(request.model if request.model in self.models else "unknown", e.code)
            raise

    async def _start(
        self, request: ReasonRequest, tenant: Tenant, carrier: Mapping[str, str], live: bool
    ) -> SearchHandle:
        model = self.models.get(request.model)
        if model is None:
            raise unknown_model(request.model, list(self.models))
        if self._closing:
            raise shutting_down()
        if len(self._running) + self._admitting >= self._limits.max_concurrent_searches:
            raise overloaded(self._limits.max_concurrent_searches)
        plan = make_plan(request, model, self._limits, _seed(request))
        # Counted before the first await, so that a burst cannot pass the limit together.
        self._admitting += 1
        try:
            if not await model.ready():
                raise engine_unavailable(model.name)
            search_id = f"srch-{secrets.token_hex(12)}"
            await self._reserve(tenant, search_id, plan)
            return self._launch(request, tenant, model, plan, search_id, carrier, live)
        finally:
            self._admitting -= 1

    async def _reserve(self, tenant: Tenant, search_id: str, plan: Plan) -> None:
        try:
            decision = await self._ledger.reserve(
                tenant.id, tenant.budget, search_id, plan.cap, self._limits.lease_s
            )
        except StoreUnavailable:
            raise ledger_unavailable() from None
        if isinstance(decision, Denied):
            raise refusal(decision, plan.cap)

    def _launch(
        self,
        request: ReasonRequest,
        tenant: Tenant,
        model: ServedModel,
        plan: Plan,
        search_id: str,
        carrier: Mapping[str, str],
        live: bool,
    ) -> SearchHandle:
        trace = QueryTrace(self._tracer, search_id=search_id, model=model.name, carrier=carrier)
        streams = live and plan.technique.name == "single"
        if streams:
            # What was sent cannot be taken back, so a sample that fails is not drawn again.
            plan = replace(plan, params=replace(plan.params, max_retries=0))
        recorder = record(plan.header, self._limits.log_entries if request.keep_log else 0)
        handle: SearchHandle
        run = SearchRun(
            search_id,
            model,
            recorder,
            plan.sampling,
            RunLimits(plan.cap, plan.deadline_s),
            cache_salt=cache_salt(self._secret, tenant.id),
            trace=trace,
            on_text=(lambda piece: handle.offer_text(piece)) if streams else None,
            on_call=lambda kind, added: self._observer.on_call(model.name, kind, added),
        )
        handle = SearchHandle(search_id, model.name, streams, run.stop)
        task = asyncio.create_task(self._conduct(request, tenant, plan, run, recorder, trace, search_id))
        handle.bind(task)
        self._running[search_id] = (handle, task)
        task.add_done_callback(lambda _: self._running.pop(search_id, None))
        return handle

    async def _conduct(
        self,
        request: ReasonRequest,
        tenant: Tenant,
        plan: Plan,
        run: SearchRun,
        search: Recorder,
        trace: QueryTrace,
        search_id: str,
    ) -> Outcome:
        started = time.monotonic()
        error: str | None = "internal error"
        outcome: Outcome | None = None
        try:
            keeper = LeaseKeeper(
                self._ledger, tenant.id, search_id, lambda: run.meter.charged, lease_s=self._limits.lease_s
            )
            async with keeper:
                watch = asyncio.create_task(_stop_when_lost(keeper, run))
                try:
                    await run.execute()
                finally:
                    watch.cancel()
                outcome = _outcome(request, plan, run, search, search_id, started)
                error = str(outcome.error) if outcome.error else None
            self._observer.on_outcome(outcome)
            return outcome
        finally:
            trace.end(_attributes(plan, run, outcome), error)

    async def close(self, grace_s: float = 10.0) -> None:
        """Take no more queries, end those running with their best so far, and settle them."""
        self._closing = True
        tasks = []
        for handle, task in self._running.values():
            handle.stop("shutdown")
            tasks.append(task)
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)


async def _stop_when_lost(keeper: LeaseKeeper, run: SearchRun) -> None:
    await keeper.lost.wait()
    run.stop("lease_lost")


def _seed(request: ReasonRequest) -> int:
    return request.seed if request.seed is not None else secrets.randbits(31)


def _outcome(
    request: ReasonRequest, plan: Plan, run: SearchRun, search: Recorder, search_id: str, started: float
) -> Outcome:
    candidate = search.best()
    stop_reason = run.stop_reason or search.stop_reason or "unknown"
    branches = settled(search.branches(), candidate, stop_reason)
    status = status_of(candidate, cut=run.stop_reason is not None)
    receipt = Receipt(
        search_id=search_id,
        model=request.model,
        technique=plan.technique.name,
        params=asdict(plan.params),
        why=plan.why,
        seed=plan.seed,
        status=status,
        stop_reason=stop_reason,
        tokens=run.meter.count(),
        cap=plan.cap,
        fixed_n_tokens=fixed_n_tokens(plan, search, _ended(branches)),
        generate_calls=run.meter.generate_calls,
        score_calls=run.meter.score_calls,
        failed_calls=run.meter.failed_calls,
        failures=tuple(dict.fromkeys(run.failures)),
        fates=_fates(branches),
        listed=lines(branches),
        support=candidate.support if candidate else None,
        tie=candidate.tie if candidate else False,
        elapsed_ms=round((time.monotonic() - started) * 1000),
    )
    error = None
    if candidate is None:
        error = failure(
            request.model,
            stop_reason,
            engine_lost=run.engine_lost,
            refused=run.refused,
            reasons=run.failures,
        )
    tree = search.tree
    return Outcome(
        status=status,
        text=tree.path_text(candidate.node) if candidate else "",
        answer=candidate.answer if candidate else None,
        complete=candidate.complete if candidate else False,
        answer_tokens=tree.path_tokens(candidate.node) - tree.prompt_tokens if candidate else 0,
        receipt=receipt,
        error=error,
        log="\n".join(search.log.to_lines()) + "\n" if request.keep_log else None,
    )


def _ended(branches: list[Branch]) -> list[Branch]:
    return [b for b in branches if b.fate not in ("stopped", "failed", "truncated")]


def _fates(branches: list[Branch]) -> dict[str, int]:
    out: dict[str, int] = {}
    for b in branches:
        out[b.fate] = out.get(b.fate, 0) + 1
    return out


def _attributes(plan: Plan, run: SearchRun, outcome: Outcome | None) -> dict[str, str | int | float | bool]:
    count = run.meter.count()
    return {
        "pondera.technique": plan.technique.name,
        "pondera.stop_reason": run.stop_reason or (outcome.receipt.stop_reason if outcome else "error"),
        "pondera.status": outcome.status if outcome else "failed",
        "pondera.cancelled": run.stop_reason is not None,
        "pondera.tokens.charged": count.charged,
        "pondera.tokens.generated": count.generated,
        "pondera.tokens.verifier": count.verifier,
        "pondera.tokens.after_stop": count.after_stop,
        "gen_ai.usage.input_tokens": count.prompt,
        "gen_ai.usage.output_tokens": count.generated,
    }
