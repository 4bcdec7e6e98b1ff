"""The one loop: room → ask → engines → tell → cancel what lost.

It enforces what no technique can overrule: the hard token cap over everything, the deadline, the KV and slot
headroom of the engines, and that every call that was started is ended and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from engines.protocol import (
    Chunk,
    Engine,
    EngineError,
    EngineLost,
    EngineRefused,
    Finish,
    GenerateRequest,
    Sampling,
    ScoreRequest,
    Scores,
    Usage,
)
from orchestrator.calls import RunningCall
from orchestrator.catalog import ServedModel
from orchestrator.meter import Meter
from orchestrator.tracing import QueryTrace
from search import contract

DRAIN_S = 5.0
"""How long the end of aborted calls is waited for, so that their tokens are counted."""
_MAX_NOTES = 32

_Arrival = Chunk | Scores | EngineError


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Hard limits of one run: charged tokens, and seconds from its start (None: no deadline)."""

    max_total_tokens: int
    deadline_s: float | None


class SearchRun:
    """Runs one search to its end.

    Args:
        search_id: unique; engine call ids derive from it.
        search: the technique; only this object calls it.
        sampling: what all samples have in common; length, seed and temperature are set per call.
        cache_salt: prefix namespace of the tenant.
        on_text: called with each piece of new text, for a search of a single sample that is streamed.
        on_call: called at each call's end with the seconds that were added outside the engine, or None
            where the engine does not tell its own.
    """

    def __init__(
        self,
        search_id: str,
        model: ServedModel,
        search: contract.Search,
        sampling: Sampling,
        limits: RunLimits,
        *,
        cache_salt: str | None,
        trace: QueryTrace,
        on_text: Callable[[str], None] | None = None,
        on_call: Callable[[str, float | None], None] | None = None,
    ) -> None:
        self._id = search_id
        self._model = model
        self._search = search
        self._sampling = sampling
        self._limits = limits
        self._salt = cache_salt
        self._trace = trace
        self._on_text = on_text
        self._on_call = on_call
        self._engine: Engine | None = None
        self._running: dict[int, RunningCall] = {}
        # Bounded by the token cap: an arrival carries a token or ends a call.
        self._arrived: deque[tuple[int, _Arrival]] = deque()
        self._wake = asyncio.Event()
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._started = time.monotonic()
        self.meter = Meter(search.tree.prompt_tokens)
        self.stop_reason: str | None = None
        """Why the run was ended from outside the technique; None when the technique finished by itself."""
        self.failures: list[str] = []
        self.engine_lost = False
        self.refused: EngineRefused | None = None

    def stop(self, reason: str) -> None:
        """End the run soon, keeping the best answer so far. The first reason stays."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self._wake.set()

    async def execute(self) -> None:
        """Run until the technique finishes, a limit is reached or `stop` is called; then end all calls."""
        try:
            await self._loop()
        finally:
            try:
                await self._drain()
            finally:
                self._model.gauge.release(self._id)

    async def _loop(self) -> None:
        while self.stop_reason is None and not self._search.finished:
            left = self._seconds_left()
            if left is not None and left <= 0:
                self.stop_reason = "deadline"
                return
            self._hold()
            room = self._room(left)
            calls = self._search.ask(room)
            self._check_within(calls, room)
            for call in calls:
                await self._start(call)
            self._hold()
            if self._running:
                await self._wait(left)
                self._take_arrivals()
            elif self._search.finished:
                return
            elif room.slots == 0 or room.kv_tokens < room.tokens:
                # Other searches hold what this one needs; their end makes room.
                await self._model.gauge.changed(min(1.0, left) if left is not None else 1.0)
            else:
                self.stop_reason = "token_cap"

    def _seconds_left(self) -> float | None:
        if self._limits.deadline_s is None:
            return None
        return self._limits.deadline_s - (time.monotonic() - self._started)

    def _room(self, seconds: float | None) -> contract.Room:
        in_flight = sum(r.outstanding for r in self._running.values())
        prompt = 0 if self.meter.charged else self._search.tree.prompt_tokens
        tokens = self._limits.max_total_tokens - self.meter.charged - prompt - in_flight
        slots, kv = self._model.gauge.free()
        return contract.Room(slots=slots, tokens=max(0, tokens), kv_tokens=kv, seconds=seconds)

    def _check_within(self, calls: list[contract.Call], room: contract.Room) -> None:
        worst = sum(self._worst(c) for c in calls)
        if worst > room.tokens or len(calls) > room.slots:
            raise RuntimeError(f"the search asked for {len(calls)} calls of {worst} tokens beyond {room}")

    def _worst(self, call: contract.Call) -> int:
        match call:
            case contract.Generate():
                return call.max_new_tokens
            case contract.Score():
                return self._model.process_reward.tokens if self._model.process_reward else 0
            case contract.Check():
                return 0

    def _hold(self) -> None:
        kv = self._search.tree.live_tokens + sum(r.outstanding for r in self._running.values())
        self._model.gauge.hold(self._id, len(self._running), kv)

    async def _start(self, call: contract.Call) -> None:
        if self._engine is None:
            self._engine = await self._model.pick()
        span = self._trace.call("generate" if isinstance(call, contract.Generate) else "score", call.node)
        running = RunningCall.of(
            call, self._worst(call), span, self._model, self._search.tree, self._sampling.stop
        )
        self._running[call.id] = running
        self.meter.started()
        if self._engine is None:
            self._arrive(call.id, EngineLost(f"no replica of {self._model.name} is ready"))
            return
        running.engine = self._engine
        running.task = asyncio.create_task(self._pump(running, self._engine))

    async def _pump(self, running: RunningCall, engine: Engine) -> None:
        call = running.call
        path = self._search.tree.path_ids(call.parent if isinstance(call, contract.Generate) else call.node)
        headers = self._trace.headers(running.span)
        try:
            if isinstance(call, contract.Generate):
                request = GenerateRequest(
                    self._call_id(call.id),
                    path,
                    self._sampling_of(call),
                    cache_salt=self._salt,
                    trace=headers,
                )
                async for chunk in engine.generate(request):
                    self._arrive(call.id, chunk)
            else:
                reward = self._model.process_reward
                if isinstance(call, contract.Check) or reward is None:
                    raise EngineError(f"{self._model.name} has no verifier for this call")
                scores = await engine.score(
                    ScoreRequest(
                        self._call_id(call.id),
                        reward.input_ids(path, self._search.tree.prompt_tokens),
                        (reward.right_id, reward.wrong_id),
                        cache_salt=self._salt,
                        trace=headers,
                    )
                )
                self._arrive(call.id, scores)
        except EngineError as e:
            self._arrive(call.id, e)
        except Exception as e:
            # A bug in an engine adapter must end this call, not hang the search.
            self._arrive(call.id, EngineError(f"engine adapter failed: {type(e).__name__}"))

    def _call_id(self, call: int) -> str:
        return f"{self._id}-{call}"

    def _sampling_of(self, call: contract.Generate) -> Sampling:
        temperature = self._sampling.temperature if call.temperature is None else call.temperature
        return replace(
            self._sampling, max_new_tokens=call.max_new_tokens, seed=call.seed, temperature=temperature
        )

    def _arrive(self, call: int, what: _Arrival) -> None:
        self._arrived.append((call, what))
        self._wake.set()

    async def _wait(self, seconds: float | None) -> None:
        if not self._arrived and self.stop_reason is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    def _take_arrivals(self) -> None:
        while self._arrived:
            call, what = self._arrived.popleft()
            running = self._running.get(call)
            if running is None:
                continue
            match what:
                case Chunk():
                    self._on_chunk(running, what)
                case Scores():
                    self._on_scores(running, what)
                case EngineError():
                    self._on_error(running, what)

    def _on_chunk(self, running: RunningCall, chunk: Chunk) -> None:
        running.received += len(chunk.token_ids)
        self.meter.generated(len(chunk.token_ids), cancelled=running.cancelled)
        if not running.cancelled:
            text = running.text_of(chunk)
            if text and self._on_text:
                self._on_text(text)
            if chunk.token_ids or text:
                self._tell(contract.Chunk(running.call.id, chunk.token_ids, text, chunk.logprobs))
        if chunk.finish is None:
            return
        error = None
        if not running.cancelled:
            if chunk.finish is Finish.ABORT:
                error = "the engine ended the call"
                self._tell(contract.Failed(running.call.id, self._note(error)))
            else:
                full = running.path_tokens + running.received >= self._model.context_tokens
                ended = "context" if chunk.finish is Finish.LENGTH and full else chunk.finish.value
                self._tell(contract.Generated(running.call.id, ended))  # type: ignore[arg-type]
        self._end(running, chunk.usage, chunk.engine_s, error)

    def _on_scores(self, running: RunningCall, scores: Scores) -> None:
        self.meter.scored(self._worst(running.call))
        self._end(running, scores.usage, scores.engine_s, None, score=scores.probabilities[0])
        if not running.cancelled:
            self._tell(contract.Scored(running.call.id, scores.probabilities[0]))

    def _on_error(self, running: RunningCall, error: EngineError) -> None:
        if isinstance(error, EngineLost):
            self.engine_lost = True
            self._engine = None
        elif isinstance(error, EngineRefused):
            self.refused = error
        self.meter.failed_calls += 1
        self._end(running, None, None, str(error))
        if not running.cancelled:
            self._tell(contract.Failed(running.call.id, self._note(str(error))))

    def _note(self, reason: str) -> str:
        if len(self.failures) < _MAX_NOTES:
            self.failures.append(reason)
        return reason

    def _tell(self, event: contract.Event) -> None:
        self._cancel([self._running[c] for c in self._search.tell(event) if c in self._running])

    def _end(
        self,
        running: RunningCall,
        usage: Usage | None,
        engine_s: float | None,
        error: str | None,
        score: float | None = None,
    ) -> None:
        del self._running[running.call.id]
        generation = isinstance(running.call, contract.Generate)
        if generation:
            self.meter.generate_calls += 1
        else:
            self.meter.score_calls += 1
        if usage is not None:
            self.meter.prefilled(usage, generation=generation)
        if self._on_call:
            wall = time.monotonic() - running.started
            self._on_call(
                "generate" if generation else "score", None if engine_s is None else wall - engine_s
            )
        self._trace.end_call(
            running.span,
            usage=usage,
            tokens=running.received,
            cancelled=running.cancelled,
            error=error,
            score=score,
        )

    def _cancel(self, calls: list[RunningCall]) -> None:
        by_engine: dict[int, tuple[Engine, list[str]]] = {}
        for running in calls:
            if running.cancelled:
                continue
            running.cancelled = True
            if running.engine is not None:
                by_engine.setdefault(id(running.engine), (running.engine, []))[1].append(
                    self._call_id(running.call.id)
                )
        for engine, ids in by_engine.values():
            task = asyncio.create_task(self._abort(engine, ids))
            self._side_tasks.add(task)
            task.add_done_callback(self._side_tasks.discard)

    @staticmethod
    async def _abort(engine: Engine, ids: list[str]) -> None:
        try:
            await engine.abort(ids)
        except EngineError:
            return  # the engine is gone, and its calls with it

    async def _drain(self) -> None:
        self._take_arrivals()
        self._cancel(list(self._running.values()))
        end = time.monotonic() + DRAIN_S
        while self._running and (left := end - time.monotonic()) > 0:
            self._wake.clear()
            if not self._arrived:
                try:
                    await asyncio.wait_for(self._wake.wait(), left)
                except TimeoutError:
                    break
            self._take_arrivals()
        for running in list(self._running.values()):
            self._end(running, None, None, "its end was not seen in time")
            if running.task is not None:
                running.task.cancel()
