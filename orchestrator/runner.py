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
from dataclasses import dataclass

from engines.detokenize import IncrementalDetokenizer
from engines.protocol import Chunk, EngineError, EngineLost, EngineRefused, Finish, Sampling, Scores, Usage
from orchestrator.calls import RunningCall
from orchestrator.catalog import ServedModel
from orchestrator.dispatch import Arrival, Dispatcher
from orchestrator.meter import Meter
from orchestrator.tracing import QueryTrace
from search import contract
from search.tree import ROOT

DRAIN_S = 5.0
"""How long the ends of aborted calls are waited for, so that their tokens are counted."""
LATE_DRAIN_S = 1.0
"""The same after a deadline, when somebody waits for the answer."""
_MOST_NOTES = 32


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Hard limits of one run.

    Args:
        max_total_tokens: charged tokens.
        deadline_s: seconds from the run's start; None for no deadline.
        max_new_tokens: tokens of one sample.
    """

    max_total_tokens: int
    deadline_s: float | None
    max_new_tokens: int


class SearchRun:
    """Runs one search to its end.

    Args:
        search_id: unique among all searches.
        search: the technique; only this object calls it.
        sampling: what all samples have in common.
        cache_salt: prefix namespace of the tenant.
        on_text: called with each piece of new text, for a search of a single sample that is streamed.
        on_call: called at each call's end with its kind and the seconds that were added outside the engine,
            None where the engine does not tell its own.
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
        self._gauge = model.gauge
        self._search = search
        self._stop_strings = sampling.stop
        self._limits = limits
        self._trace = trace
        self._on_text = on_text
        self._on_call = on_call
        self._engine = Dispatcher(search_id, model, search.tree, sampling, cache_salt, self._arrive)
        self._running: dict[int, RunningCall] = {}
        # Where the text of a node ends, for the calls that continue it.
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}
        # Bounded by the token cap: an arrival carries a token or ends a call.
        self._arrived: deque[tuple[int, Arrival]] = deque()
        self._wake = asyncio.Event()
        self._started = time.monotonic()
        self.meter = Meter(search.tree.prompt_tokens)
        self.stop_reason: str | None = None
        """Why the run was ended from outside the technique; None when the technique finished by itself."""
        self.failures: list[str] = []
        """Reasons of failed calls, the first few."""
        self.engine_lost = False
        """Whether a replica was lost under one of its calls."""
        self.refused: EngineRefused | None = None
        """The engine's refusal of the request's parameters; it holds for all samples and ends the run."""

    def stop(self, reason: str) -> None:
        """End the run soon, keeping the best answer so far. The first reason stays; a late one is ignored."""
        if self.stop_reason is None and not self._search.finished:
            self.stop_reason = reason
            self._wake.set()
            self._gauge.nudge(self._id)

    async def execute(self) -> None:
        """Run until the technique finishes, a limit is reached or `stop` is called; then end all calls."""
        try:
            self._search.release()  # the engine holds nothing of it yet
            await self._loop()
        finally:
            try:
                await self._drain()
            finally:
                self._gauge.release(self._id)

    async def _loop(self) -> None:
        while self.stop_reason is None and not self._search.finished:
            left = self._seconds_left()
            if left is not None and left <= 0:
                self.stop("deadline")
            elif await self._engine.ready():
                await self._step()
            elif self._running:
                await self._take_events()
            else:
                self.stop("engine_lost")

    async def _step(self) -> None:
        """Ask, start what was asked for, and wait for something to happen."""
        if self.stop_reason is not None:
            return
        room = self._room()
        calls = self._search.ask(room)
        self._check_within(calls, room)
        for call in calls:
            self._start(call)
        self._hold()
        if self._running:
            await self._take_events()
        elif self._search.finished:
            return
        elif self._gauge.alone(self._id):
            self.stop("token_cap" if room.tokens <= room.kv_tokens else "kv_cap")
        elif room.slots and room.tokens <= room.kv_tokens:
            self.stop("token_cap")
        else:
            # Others hold what this search needs. It holds nothing while it waits for its turn.
            self._search.release()
            self._hold()
            await self._gauge.wait(self._id, self._seconds_left())

    async def _take_events(self) -> None:
        await self._wait(self._seconds_left())
        self._take_arrivals()
        self._hold()

    def _seconds_left(self) -> float | None:
        if self._limits.deadline_s is None:
            return None
        return self._limits.deadline_s - (time.monotonic() - self._started)

    def _room(self) -> contract.Room:
        in_flight = sum(r.outstanding for r in self._running.values())
        prompt = 0 if self.meter.charged else self._search.tree.prompt_tokens
        tokens = self._limits.max_total_tokens - self.meter.charged - prompt - in_flight
        slots, kv = self._gauge.free(self._id)
        return contract.Room(slots=slots, tokens=max(0, tokens), kv_tokens=kv, seconds=self._seconds_left())

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
        self._gauge.hold(self._id, len(self._running), kv)

    def _start(self, call: contract.Call) -> None:
        generation = isinstance(call, contract.Generate)
        begin = call.parent if isinstance(call, contract.Generate) else call.node
        running = RunningCall(
            call=call,
            worst=self._worst(call),
            span=self._trace.call("generate" if generation else "score", call.node),
            path_tokens=self._search.tree.path_tokens(begin),
            detokenizer=self._detokenizer(begin) if generation else None,
        )
        self._running[call.id] = running
        self._engine.start(running)

    def _detokenizer(self, parent: int) -> IncrementalDetokenizer:
        if parent in self._detokenizers:
            return self._detokenizers[parent].copy()
        prompt = self._search.tree[ROOT].token_ids
        return IncrementalDetokenizer(self._model.tokenizer, prompt[-8:], self._stop_strings)

    def _arrive(self, call: int, what: Arrival) -> None:
        self._arrived.append((call, what))
        self._wake.set()

    async def _wait(self, seconds: float | None) -> None:
        if not self._arrived and self.stop_reason is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
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
            self._tell_chunk(running, chunk)
        if chunk.finish is None:
            return
        error = None
        if not running.cancelled:
            if chunk.finish is Finish.ABORT:
                error = "the engine ended the call"
                self._tell(contract.Failed(running.call.id, self._note(error)))
            elif chunk.finish is Finish.STOP:
                self._tell(contract.Generated(running.call.id, "stop"))
            else:
                full = running.path_tokens + running.received >= self._model.context_tokens
                self._tell(contract.Generated(running.call.id, "context" if full else "length"))
        self._end(running, chunk.usage, chunk.engine_s, error)

    def _tell_chunk(self, running: RunningCall, chunk: Chunk) -> None:
        assert running.detokenizer is not None
        text = running.detokenizer.push(chunk.token_ids)
        if chunk.finish is not None:
            if chunk.finish is Finish.LENGTH and not self._is_full(running):
                self._detokenizers[running.call.node] = running.detokenizer
            else:
                text += running.detokenizer.flush()
        if text and self._on_text:
            self._on_text(text)
        if chunk.token_ids or text:
            self._tell(contract.Chunk(running.call.id, chunk.token_ids, text, chunk.logprobs))
        if running.detokenizer.matched_stop is not None and chunk.finish is None and not running.cancelled:
            # A stop string that the engine did not see, since part of it came with an earlier call.
            self._tell(contract.Generated(running.call.id, "stop"))
            self._cancel([running])

    def _is_full(self, running: RunningCall) -> bool:
        """Whether the sample has reached its own end, so that no call will continue it."""
        tokens = running.path_tokens + running.received
        sample = tokens - self._search.tree.prompt_tokens
        return sample >= self._limits.max_new_tokens or tokens >= self._model.context_tokens

    def _on_scores(self, running: RunningCall, scores: Scores) -> None:
        self.meter.scored(self._worst(running.call))
        self._end(running, scores.usage, scores.engine_s, None, score=scores.probabilities[0])
        if not running.cancelled:
            self._tell(contract.Scored(running.call.id, scores.probabilities[0]))

    def _on_error(self, running: RunningCall, error: EngineError) -> None:
        if isinstance(error, EngineLost):
            self._engine.forget_engine()
            self.engine_lost |= not running.cancelled
        elif isinstance(error, EngineRefused) and not running.cancelled:
            self.refused = error
            self.stop("refused")
        self._end(running, None, None, str(error))
        if not running.cancelled:
            self.meter.failed_calls += 1
            self._tell(contract.Failed(running.call.id, self._note(str(error))))

    def _note(self, reason: str) -> str:
        if len(self.failures) < _MOST_NOTES:
            self.failures.append(reason)
        return reason

    def _tell(self, event: contract.Event) -> None:
        self._cancel([self._running[c] for c in self._search.tell(event) if c in self._running])

    def _cancel(self, calls: list[RunningCall]) -> None:
        fresh = [r for r in calls if not r.cancelled]
        for running in fresh:
            running.cancelled = True
        self._engine.abort(fresh)

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

    async def _drain(self) -> None:
        self._take_arrivals()
        self._cancel(list(self._running.values()))
        end = time.monotonic() + (LATE_DRAIN_S if self.stop_reason == "deadline" else DRAIN_S)
        while self._running and (left := end - time.monotonic()) > 0:
            self._wake.clear()
            if not self._arrived:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._wake.wait()
            self._take_arrivals()
        for running in list(self._running.values()):
            self._end(running, None, None, "its end was not seen in time")
            if running.task is not None:
                running.task.cancel()
