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
    ScoreRequest,
    Scores,
)
from orchestrator.calls import RunningCall
from orchestrator.catalog import ServedModel
from orchestrator.tracing import QueryTrace
from search import contract
from search.tree import Tree

Arrival: TypeAlias = Chunk | Scores | EngineError


class Dispatcher:
    """The engine side of one search. All its calls go to one replica, where their prefixes are cached.

    Args:
        search_id: engine call ids derive from it.
        sampling: what all samples have in common; length, seed and temperature are set per call.
        arrive: called with a call's number and each thing that comes back; the last one of a call is a chunk
            with `finish`, scores, or an error.
    """

    def __init__(
        self,
        search_id: str,
        model: ServedModel,
        tree: Tree,
        sampling: Sampling,
        cache_salt: str | None,
        arrive: Callable[[int, Arrival], None],
    ) -> None:
        self._id = search_id
        self._model = model
        self._tree = tree
        self._sampling = sampling
        self._salt = cache_salt
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
            if isinstance(call, contract.Generate):
                await self._generate(call, engine, QueryTrace.headers(running.span))
            else:
                self._arrive(call.id, await self._score(call, engine, QueryTrace.headers(running.span)))
        except EngineError as e:
            self._arrive(call.id, e)
        except Exception as e:
            # A bug in an engine adapter must end this call, not hang the search.
            self._arrive(call.id, EngineError(f"the engine adapter failed: {type(e).__name__}"))

    async def _generate(self, call: contract.Generate, engine: Engine, trace: dict[str, str]) -> None:
        temperature = self._sampling.temperature if call.temperature is None else call.temperature
        sampling = replace(
            self._sampling, max_new_tokens=call.max_new_tokens, seed=call.seed, temperature=temperature
        )
        path = self._tree.path_ids(call.parent)
        request = GenerateRequest(self._call_id(call.id), path, sampling, cache_salt=self._salt, trace=trace)
        finished = False
        # To the very end, so that the engine's own clean-up has run when the call counts as over.
        async for chunk in engine.generate(request):
            finished |= chunk.finish is not None
            self._arrive(call.id, chunk)
        if not finished:
            self._arrive(call.id, EngineError("the engine ended a stream without saying how it finished"))

    async def _score(
        self, call: contract.Score | contract.Check, engine: Engine, trace: dict[str, str]
    ) -> Scores:
        reward = self._model.process_reward
        if isinstance(call, contract.Check) or reward is None:
            raise EngineError(f"{self._model.name} has no verifier for this call")
        ids = reward.input_ids(self._tree.path_ids(call.node), self._tree.prompt_tokens)
        labels = (reward.right_id, reward.wrong_id)
        return await engine.score(
            ScoreRequest(self._call_id(call.id), ids, labels, cache_salt=self._salt, trace=trace)
        )

    def _call_id(self, call: int) -> str:
        return f"{self._id}-{call}"


async def _abort(engine: Engine, ids: list[str]) -> None:
    try:
        await engine.abort(ids)
    except EngineError:
        return  # the engine is gone, and its calls with it
