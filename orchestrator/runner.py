"""The one loop: room → ask → engines → tell → cancel what lost.

It enforces what no technique can overrule: the hard token cap over everything, the deadline, the KV and slot
headroom of the engines, and that every call that was started is ended and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engines.protocol import Chunk, EngineError, EngineLost, EngineRefused, Finish, Sampling, Usage
from orchestrator import telling
from orchestrator.account import RunAccount
from orchestrator.calls import RunningCall
from orchestrator.catalog import ServedModel
from orchestrator.dispatch import Dispatcher
from orchestrator.inbox import Inbox
from orchestrator.path_text import PathTexts
from orchestrator.tracing import QueryTrace
from orchestrator.verifiers.port import NO_VERIFIERS, Judgement, Verifiers
from search import contract
from search.resume import Pending

DRAIN_S = 5.0
"""How long the ends of aborted calls are waited for, so that their tokens are counted."""
ANSWER_DRAIN_S = 0.1
"""How long an answer that is due waits for them; what comes later is still counted, before it is settled."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Hard limits of one run.

    Args:
        max_total_tokens: charged tokens.
        deadline_s: seconds from the run's start; None for no deadline.
        max_new_tokens: tokens of one sample.
        costs: what calls other than generations cost at most.
    """

    max_total_tokens: int
    deadline_s: float | None
    max_new_tokens: int
    costs: contract.Costs = field(default_factory=contract.Costs)


class SearchRun:
    """Runs one search to its end.

    Args:
        search_id: unique among all searches.
        search: the technique; only this object calls it.
        sampling: what all samples have in common.
        cache_salt: prefix namespace of the tenant.
        verifiers: who answers the search's calls that are no generations.
        question: what the client asked, for the verifiers.
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
        verifiers: Verifiers = NO_VERIFIERS,
        question: str = "",
        on_text: Callable[[str], None] | None = None,
        on_call: Callable[[str, float | None], None] | None = None,
    ) -> None:
        self._id = search_id
        self._model = model
        self._gauge = model.gauge
        self._search = search
        self._limits = limits
        self._trace = trace
        self._on_text = on_text
        self._inbox = Inbox()
        self._engine = Dispatcher(
            search_id, model, search.tree, sampling, cache_salt, verifiers, question, self._inbox.put
        )
        self._running: dict[int, RunningCall] = {}
        self._texts = PathTexts(search.tree, model.tokenizer, sampling.stop)
        self._started = time.monotonic()
        self.account = RunAccount(search.tree.prompt_tokens, trace, on_call)
        self.meter = self.account.meter
        self.stop_reason: str | None = None
        """Why the run was ended from outside the technique; None when the technique finished by itself."""

    def stop(self, reason: str) -> None:
        """End the run soon, keeping the best answer so far. The first reason stays; a late one is ignored."""
        if self.stop_reason is None and not self._search.finished:
            self.stop_reason = reason
            self._inbox.wake()
            self._gauge.nudge(self._id)

    async def execute(
        self, resume: Sequence[Pending] = (), answer_due: Callable[[], None] = lambda: None
    ) -> None:
        """Run until the technique finishes, a limit is reached or `stop` is called; then end all calls.

        Args:
            resume: calls that a search replayed from its log was waiting for (`search.resume`); what is left
                of them is sent again. What was spent before was counted by the run that ended.
            answer_due: called once nothing changes the answer any more: at the end, or, after a deadline, as
                soon as `ANSWER_DRAIN_S` have gone by. Tokens that come after it are counted all the same.
        """
        try:
            if not resume:
                self._search.release()  # the engine holds nothing of it yet
            await self._loop(resume)
        finally:
            try:
                self._take_arrivals()
                self._cancel(list(self._running.values()))
                if self.stop_reason == "deadline":
                    await self._drain(ANSWER_DRAIN_S)
                    self.account.late_calls = len(self._running)
                    answer_due()
                await self._drain(DRAIN_S)
            finally:
                self._give_up_calls()
                self._gauge.release(self._id)

    async def _loop(self, resume: Sequence[Pending]) -> None:
        if resume and not await self._engine.ready():
            self.stop("engine_lost")
        elif resume:
            self._resume(resume)
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

    def _resume(self, pending: Sequence[Pending]) -> None:
        for before in pending:
            call, rest = before.call, before.rest
            end = None
            if isinstance(call, contract.Generate) and before.received:
                piece = self._texts.start(call.parent)
                ids = self._search.tree[call.node].token_ids
                piece.push(ids)
                end = telling.end_seen(call, piece, ids, self._model.tokenizer.eos_ids, before.received)
                if end is None or end.finish != "stop":
                    self._texts.keep(call.node, piece)
            if end is not None:
                self._tell(end)
            else:
                self._start(rest)
        self._hold()

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
        if self.stop_reason is None:
            await self._inbox.wait(self._seconds_left())
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
        worst = sum(self._limits.costs.of(c) for c in calls)
        if worst > room.tokens or len(calls) > room.slots:
            raise RuntimeError(f"the search asked for {len(calls)} calls of {worst} tokens beyond {room}")

    def _hold(self) -> None:
        kv = self._search.tree.live_tokens + sum(r.outstanding for r in self._running.values())
        self._gauge.hold(self._id, len(self._running), kv)

    def _start(self, call: contract.Call) -> None:
        worst = self._limits.costs.of(call)
        if isinstance(call, contract.Generate):
            self.meter.given(call.given_tokens)
            worst -= call.given_tokens
            if self._on_text and call.given_tokens:
                self._on_text(self._search.tree[call.parent].text)
        running = RunningCall(
            call=call,
            worst=worst,
            span=self._trace.call(telling.kind_of(call), telling.node_of(call)),
            path_tokens=self._search.tree.path_tokens(call.node)
            if isinstance(call, contract.Generate)
            else 0,
            piece=self._texts.start(call.parent) if isinstance(call, contract.Generate) else None,
        )
        self._running[call.id] = running
        self._engine.start(running)

    def _take_arrivals(self) -> None:
        for call, what in self._inbox.take():
            running = self._running.get(call)
            if running is None:
                continue
            match what:
                case Chunk():
                    self._on_chunk(running, what)
                case Judgement():
                    self._on_judgement(running, what)
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
                self._tell(contract.Failed(running.call.id, self.account.note(error)))
            else:
                self._tell(telling.end_of(running, chunk, self._model.context_tokens))
        self._end(running, chunk.usage, chunk.engine_s, error)

    def _tell_chunk(self, running: RunningCall, chunk: Chunk) -> None:
        assert running.piece is not None and isinstance(running.call, contract.Generate)
        text = running.piece.push(chunk.token_ids)
        if chunk.finish is not None:
            goes_on = chunk.finish is Finish.LENGTH and not self._is_full(running)
            if goes_on or telling.ends_step(running, chunk):
                self._texts.keep(running.call.node, running.piece)
            else:
                text += running.piece.flush()
        if text and self._on_text:
            self._on_text(text)
        if chunk.token_ids or text:
            self._tell(telling.piece_of(running, chunk, text))
        if running.piece.matched_stop is not None and chunk.finish is None and not running.cancelled:
            # A stop string that the engine did not see, since part of it came with an earlier call.
            self._tell(contract.Generated(running.call.id, "stop"))
            self._cancel([running])

    def _is_full(self, running: RunningCall) -> bool:
        """Whether the sample has reached its own end, so that no call will continue it."""
        tokens = running.path_tokens + running.received
        sample = tokens - self._search.tree.prompt_tokens
        return sample >= self._limits.max_new_tokens or tokens >= self._model.context_tokens

    def _on_judgement(self, running: RunningCall, judgement: Judgement) -> None:
        self.meter.judged(judgement.tokens)
        self.account.disagreements += judgement.disagreement
        event = telling.event_of(running.call, judgement)
        error = None
        if event is None or judgement.verdict == "error":
            reason = judgement.reason or "the verifier could not say"
            error = reason if running.cancelled else self.account.failed(reason)
        self._end(running, judgement.usage, judgement.engine_s, error, score=judgement.score)
        if not running.cancelled:
            self._tell(event or contract.Failed(running.call.id, error or ""))

    def _on_error(self, running: RunningCall, error: EngineError) -> None:
        if isinstance(error, EngineLost):
            self._engine.forget_engine()
            self.account.engine_lost |= not running.cancelled
        elif isinstance(error, EngineRefused) and not running.cancelled:
            self.account.refused = error
            self.stop("refused")
        self._end(running, None, None, str(error))
        if not running.cancelled:
            self._tell(contract.Failed(running.call.id, self.account.failed(str(error))))

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
        self.account.ended(running, usage, engine_s, error, score)

    async def _drain(self, seconds: float) -> None:
        """Take in the ends of the calls that were cancelled, for as long as this."""
        end = time.monotonic() + seconds
        while self._running and (left := end - time.monotonic()) > 0:
            await self._inbox.wait(left)
            self._take_arrivals()

    def _give_up_calls(self) -> None:
        for running in list(self._running.values()):
            self._end(running, None, None, "its end was not seen in time")
            if running.task is not None:
                running.task.cancel()
