"""Takes queries: admission, plan, run, settlement."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from opentelemetry.trace import Tracer

from guards.lease import LeaseKeeper
from guards.ledger import Ledger
from guards.ledger_types import Denied
from guards.salt import cache_salt
from guards.store import StoreUnavailable
from guards.tenants import Tenant
from orchestrator.admission import refusal, suspended
from orchestrator.catalog import ServedModel
from orchestrator.conclusion import conclude
from orchestrator.errors import (
    QueryError,
    engine_unavailable,
    ledger_unavailable,
    overloaded,
    shutting_down,
    unknown_model,
)
from orchestrator.handle import SearchHandle
from orchestrator.outcome import Outcome
from orchestrator.plan import Plan, make_plan
from orchestrator.request import ReasonRequest
from orchestrator.runner import RunLimits, SearchRun
from orchestrator.settings import LimitSettings
from orchestrator.tracing import QueryTrace
from orchestrator.verifiers.build import Toolbox
from search.log import Recorder, record

_log = logging.getLogger(__name__)
_SETTLE_S = 1.0
"""How long an answer that is ready waits for its settlement; that goes on by itself afterwards."""
_INLINE_CHARS = 16_384
"""Longer prompts are tokenised in a thread, so that they do not hold up everybody else."""
_TOKENISERS = 2


class Observer(Protocol):
    """Told of what happened, for metrics. Must not block or raise."""

    def on_call(self, model: str, kind: str, added_s: float | None) -> None: ...

    def on_outcome(self, outcome: Outcome) -> None: ...

    def on_refused(self, model: str, code: str) -> None: ...


class Orchestrator:
    """The join of search, engines and guards.

    Args:
        models: served models by name.
        server_secret: key of the tenants' cache salts.
        tools: what verifiers need beside engines.
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
        tools: Toolbox | None = None,
    ) -> None:
        self.models = models
        self._tools = tools or Toolbox()
        self._ledger = ledger
        self._secret = server_secret
        self._limits = limits
        self._tracer = tracer
        self._observer = observer
        self._tokenisers = asyncio.Semaphore(_TOKENISERS)
        self._running: dict[str, SearchHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._admitting = 0
        self._admitted = asyncio.Event()
        self._closing = False

    @property
    def searches(self) -> int:
        """Queries running now."""
        return len(self._running)

    async def ready(self) -> dict[str, bool]:
        """Whether each model has a replica that can serve."""
        answers = await asyncio.gather(*(model.ready() for model in self.models.values()))
        return dict(zip(self.models, answers, strict=True))

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
        search_id = f"srch-{secrets.token_hex(12)}"
        label = request.model if request.model in self.models else "unknown"
        trace = QueryTrace(self._tracer, search_id=search_id, model=label, carrier=carrier)
        # Counted before the first await, so that a burst cannot pass the limit together.
        self._admitting += 1
        try:
            model = self._admit(request, tenant)
            plan = await self._plan(request, tenant, model, live=live)
            if not await model.ready():
                raise engine_unavailable(model.name)
            await self._reserve(tenant, search_id, plan)
            return self._launch(request, tenant, model, plan, search_id, trace, live=live)
        except QueryError as e:
            self._observer.on_refused(label, e.code)
            trace.end({"pondera.status": "refused", "pondera.stop_reason": e.code}, str(e))
            raise
        except BaseException:
            trace.end({"pondera.status": "failed"}, "internal error")
            raise
        finally:
            self._admitting -= 1
            self._admitted.set()

    def _admit(self, request: ReasonRequest, tenant: Tenant) -> ServedModel:
        model = self.models.get(request.model)
        if model is None:
            raise unknown_model(request.model, list(self.models))
        if self._closing:
            raise shutting_down()
        if tenant.budget.suspended:
            raise suspended()
        if len(self._running) + self._admitting > self._limits.max_concurrent_searches:
            raise overloaded(self._limits.max_concurrent_searches)
        return model

    async def _plan(self, request: ReasonRequest, tenant: Tenant, model: ServedModel, *, live: bool) -> Plan:
        seed = request.seed if request.seed is not None else secrets.randbits(31)
        resolve = partial(
            make_plan, request, model, self._limits, seed, self._tools, allow_code=tenant.allow_code
        )
        if sum(len(m.content) for m in request.messages) <= _INLINE_CHARS:
            plan = resolve()
        else:
            async with self._tokenisers:
                plan = await asyncio.to_thread(resolve)
        if live and plan.technique.name == "single":
            # What was sent cannot be taken back, so a sample that fails is not drawn again.
            plan = replace(plan, params=replace(plan.params, max_retries=0))
        return plan

    async def _reserve(self, tenant: Tenant, search_id: str, plan: Plan) -> None:
        try:
            decision = await self._ledger.reserve(
                tenant.id, tenant.budget, search_id, plan.cap, self._limits.lease_s
            )
            if isinstance(decision, Denied):
                raise refusal(decision, plan.cap)
            if self._closing:
                await self._ledger.settle(tenant.id, search_id, 0)
                raise shutting_down()
        except StoreUnavailable:
            raise ledger_unavailable() from None

    def _launch(
        self,
        request: ReasonRequest,
        tenant: Tenant,
        model: ServedModel,
        plan: Plan,
        search_id: str,
        trace: QueryTrace,
        *,
        live: bool,
    ) -> SearchHandle:
        recorder = record(plan.header, self._limits.log_entries if request.keep_log else 0)
        streams = live and plan.technique.name == "single"
        handle: SearchHandle
        run = SearchRun(
            search_id,
            model,
            recorder,
            plan.sampling,
            RunLimits(plan.cap, plan.deadline_s, plan.limits.max_new_tokens, plan.costs),
            cache_salt=cache_salt(self._secret, tenant.id),
            trace=trace,
            verifiers=plan.verifiers,
            question=request.messages[-1].content,
            on_text=(lambda piece: handle.offer_text(piece)) if streams else None,
            on_call=lambda kind, added: self._observer.on_call(model.name, kind, added),
        )
        handle = SearchHandle(search_id, model.name, streams, run.stop)
        handle.bind(
            asyncio.create_task(self._conduct(request, tenant, plan, run, recorder, trace, search_id))
        )
        self._running[search_id] = handle
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
        """Run, settle, report. An answer that was found is never lost to what goes wrong after it."""
        started = time.monotonic()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        spending = asyncio.create_task(self._spend(tenant, run, search_id, over))
        self._tasks.add(spending)
        spending.add_done_callback(self._settled)
        outcome: Outcome | None = None
        try:
            await over
            outcome = conclude(request, plan, run, search, search_id, time.monotonic() - started)
            if not run.account.late_calls:
                await asyncio.wait({spending}, timeout=_SETTLE_S)
            self._observer.on_outcome(outcome)
            return outcome
        finally:
            self._running.pop(search_id, None)
            error = str(outcome.error) if outcome and outcome.error else None

            def end_trace(_: object) -> None:
                trace.end(_attributes(plan, run, outcome), error if outcome else "internal error")

            if run.account.late_calls and not spending.done():
                # The root ends after its children, and an answer that is due does not wait for them.
                spending.add_done_callback(end_trace)
            else:
                end_trace(spending)

    async def _spend(
        self, tenant: Tenant, run: SearchRun, search_id: str, over: asyncio.Future[None]
    ) -> None:
        """Run the search under its lease; sets `over` when it has ended, and settles after that."""
        keeper = LeaseKeeper(
            self._ledger, tenant.id, search_id, lambda: run.meter.charged, lease_s=self._limits.lease_s
        )

        def answer_due() -> None:
            if not over.done():
                over.set_result(None)

        async with keeper:
            watch = asyncio.create_task(_stop_when_lost(keeper, run))
            try:
                await run.execute(answer_due=answer_due)
            except Exception as e:
                if not over.done():
                    over.set_exception(e)
            finally:
                watch.cancel()
                answer_due()

    def _settled(self, spending: asyncio.Task[None]) -> None:
        self._tasks.discard(spending)
        if not spending.cancelled() and (error := spending.exception()) is not None:
            _log.error("a search was not settled; its lease will run out: %s", type(error).__name__)

    async def close(self, grace_s: float = 10.0) -> None:
        """Take no more queries, end those running with their best so far, and settle them.

        Args:
            grace_s: seconds until what has not ended is cancelled.
        """
        self._closing = True
        end = time.monotonic() + grace_s
        while self._admitting and (left := end - time.monotonic()) > 0:
            self._admitted.clear()
            await _wait(self._admitted, left)
        for handle in list(self._running.values()):
            handle.stop("shutdown")
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=max(0.1, end - time.monotonic()))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _stop_when_lost(keeper: LeaseKeeper, run: SearchRun) -> None:
    await keeper.lost.wait()
    run.stop("lease_lost")


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
