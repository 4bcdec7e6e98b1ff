"""Hands the calls of one search to an engine, and what comes back to the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from engines.protocol import (
    Chunk,
    Engine,
    EngineError,
    GenerateRequest,
    Sampling,
)
from orchestrator.calls import RunningCall
from orchestrator.catalog import ServedModel
from orchestrator.tracing import QueryTrace
from orchestrator.verifiers.port import Judgement, Subject, Verifiers
from search import contract
from search.tree import Tree

Arrival: TypeAlias = Chunk | Judgement | EngineError


class Dispatcher:
    """The engine side of one search. All its calls go to one replica, where their prefixes are cached.

    Args:
        search_id: engine call ids derive from it.
        sampling: what all samples have in common; length, seed and temperature are set per call.
        verifiers: who answers calls that are no generations.
        question: what the client asked, for the verifiers.
        arrive: called with a call's number and each thing that comes back; the last one of a call is a chunk
            with `finish`, a judgement, or an error.
    """

    def __init__(
        self,
        search_id: str,
        model: ServedModel,
        tree: Tree,
        sampling: Sampling,
        cache_salt: str | None,
        verifiers: Verifiers,
        question: str,
        arrive: Callable[[int, Arrival], None],
    ) -> None:
        self._id = search_id
        self._model = model
        self._tree = tree
        self._sampling = sampling
        self._salt = cache_salt
        self._verifiers = verifiers
        self._question = question
        self._arrive = arrive
        self._engine: Engine | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    async def ready(self) -> bool:
        """Whether there is a replica to send calls to; picks one where the search has none."""
        if self._engine is None:
            self._engine = await self._model.pick()
        return self._engine is not None

    def forget_engine(self) -> None:
        """The replica was lost; later calls go to another one, where their paths are prefilled again."""
        self._engine = None

    def start(self, running: RunningCall) -> None:
        """Send a call. To be used only after `ready` said yes."""
        assert self._engine is not None
        running.engine = self._engine
        running.task = asyncio.create_task(self._pump(running, self._engine))

    def abort(self, calls: list[RunningCall]) -> None:
        """Cancel calls in their engines, without waiting for their ends."""
        by_engine: dict[int, tuple[Engine, list[str]]] = {}
        for running in calls:
            if running.engine is not None:
                by_engine.setdefault(id(running.engine), (running.engine, []))[1].append(
                    self._call_id(running.call.id)
                )
        for engine, ids in by_engine.values():
            task = asyncio.create_task(_abort(engine, ids))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _pump(self, running: RunningCall, engine: Engine) -> None:
        call = running.call
        try:
            headers = QueryTrace.headers(running.span)
            if isinstance(call, contract.Generate):
                await self._generate(call, engine, headers)
            else:
                self._arrive(call.id, await self._judge(call, engine, headers))
        except EngineError as e:
            self._arrive(call.id, e)
        except Exception as e:
            # A bug in an adapter must end this call, not hang the search.
            self._arrive(call.id, EngineError(f"the adapter failed: {type(e).__name__}"))

    async def _generate(self, call: contract.Generate, engine: Engine, trace: dict[str, str]) -> None:
        path = self._tree.path_ids(call.node)
        request = GenerateRequest(
            self._call_id(call.id),
            path,
            self._sampling_of(call),
            logprobs=call.logprobs > 0,
            top_logprobs=call.logprobs if call.logprobs > 1 else 0,
            cache_salt=self._salt,
            trace=trace,
        )
        finished = False
        # To the very end, so that the engine's own clean-up has run when the call counts as over.
        async for chunk in engine.generate(request):
            finished |= chunk.finish is not None
            self._arrive(call.id, chunk)
        if not finished:
            self._arrive(call.id, EngineError("the engine ended a stream without saying how it finished"))

    def _sampling_of(self, call: contract.Generate) -> Sampling:
        temperature = self._sampling.temperature if call.temperature is None else call.temperature
        sampling = replace(
            self._sampling,
            max_new_tokens=call.max_new_tokens,
            seed=call.seed,
            temperature=temperature,
            stop=tuple(dict.fromkeys((*self._sampling.stop, *call.until))),
        )
        if call.constrained:
            return sampling
        return replace(
            sampling,
            json_schema=None,
            regex=None,
            frequency_penalty=0.0,
            presence_penalty=0.0,
            repetition_penalty=1.0,
        )

    async def _judge(self, call: contract.Call, engine: Engine, trace: dict[str, str]) -> Judgement:
        verifiers = self._verifiers
        match call:
            case contract.Score() if verifiers.scorer is not None:
                return await verifiers.scorer.score(
                    self._subject(call.id, call.begin, call.node, engine, trace)
                )
            case contract.Check() if verifiers.checker is not None:
                return await verifiers.checker.check(
                    self._subject(call.id, call.begin, call.node, engine, trace)
                )
            case contract.Compare() if verifiers.comparer is not None:
                return await verifiers.comparer.compare(
                    self._subject(call.id, call.begin, call.node, engine, trace),
                    self._subject(call.id, call.begin, call.other, engine, trace),
                )
            case contract.Equate() if verifiers.equator is not None:
                same = await verifiers.equator.same(call.answer, call.other)
                return Judgement(verdict="unsure" if same is None else "right" if same else "wrong")
        raise EngineError(f"{self._model.name} has no verifier for this call")

    def _subject(self, call: int, begin: int, node: int, engine: Engine, trace: dict[str, str]) -> Subject:
        return Subject(
            call_id=self._call_id(call),
            question=self._question,
            path_ids=self._tree.path_ids(node),
            prompt_tokens=self._tree.path_tokens(begin),
            text=self._tree.path_text(node, begin),
            engine=engine,
            cache_salt=self._salt,
            trace=trace,
        )

    def _call_id(self, call: int) -> str:
        return f"{self._id}-{call}"


async def _abort(engine: Engine, ids: list[str]) -> None:
    try:
        await engine.abort(ids)
    except EngineError:
        return  # the engine is gone, and its calls with it
