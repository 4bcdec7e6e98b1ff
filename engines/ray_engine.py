"""An engine in a Ray actor, from the client's side."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psutil
import ray
from ray.exceptions import RayError

from engines.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineLoad,
    EngineLost,
    GenerateRequest,
    Reward,
    RewardRequest,
    ScoreRequest,
    Scores,
)
from engines.ray_channel import Channel, Pending
from engines.spec import EngineSpec

NAMESPACE = "pondera"

_LEASE_S = 15.0
_FRESH_S = 0.5
_READY_S = 0.8
_LOAD_S = 2.0
_CLOSE_S = 20.0


class RayEngine:
    """Implements `engines.protocol.Engine` over an `EngineActor`. Use it from one event loop.

    While the actor restarts, `ready` is False and calls fail at once with `EngineLost`.
    """

    def __init__(self, actor: Any, name: str, lease_s: float) -> None:
        """For `start_engine` and `attach_engine`, which also connect it."""
        self._actor = actor
        self._name = name
        self._channel = Channel(actor, name, lease_s)
        self._info: EngineInfo | None = None
        self._answered_at = -_FRESH_S
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    async def connect(self) -> None:
        """Wait until the engine serves.

        Raises:
            EngineError: it did not start; the message has the reason.
        """
        try:
            _, self._info = await self._actor.start.remote()
        except RayError as error:
            raise EngineError(f"engine {self._name!r} did not start: {_reason(error)}") from error
        await self._channel.connect()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        pending = self._channel.open(request)
        try:
            while True:
                chunk = await pending.take()
                assert isinstance(chunk, Chunk)
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            self._channel.abandon(pending)

    async def score(self, request: ScoreRequest) -> Scores:
        scores = await self._one(request)
        assert isinstance(scores, Scores)
        return scores

    async def reward(self, request: RewardRequest) -> Reward:
        reward = await self._one(request)
        assert isinstance(reward, Reward)
        return reward

    async def _one(self, request: ScoreRequest | RewardRequest) -> Chunk | Scores | Reward:
        """The one report of a call; the call is aborted when it is waited for no longer."""
        pending: Pending = self._channel.open(request)
        try:
            return await pending.take()
        except asyncio.CancelledError:
            self._channel.abort(request.call_id)
            raise
        finally:
            self._channel.abandon(pending)

    async def abort(self, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            self._channel.abort(call_id)

    async def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineLost(f"engine {self._name!r} is not connected")
        return self._info

    async def load(self) -> EngineLoad:
        """Raises:
        EngineLost: the engine is not there, or did not answer in time.
        """
        try:
            async with asyncio.timeout(_LOAD_S):
                load: EngineLoad = await self._actor.load.remote()
        except (RayError, TimeoutError) as error:
            raise EngineLost(f"engine {self._name!r} does not answer") from error
        return load

    async def ready(self) -> bool:
        """As in the protocol. An answer of the actor stands for `_FRESH_S`, unless its stream breaks."""
        if self._closed or not self._channel.connected:
            return False
        now = asyncio.get_running_loop().time()
        if now - self._answered_at < _FRESH_S:
            return True
        try:
            async with asyncio.timeout(_READY_S):
                alive: bool = await self._actor.ping.remote()
        except (RayError, TimeoutError):
            return False
        self._answered_at = now if alive else -_FRESH_S
        return alive

    async def process_ids(self) -> tuple[int, ...]:
        """The actor's process and then SGLang's worker processes, on the actor's host."""
        try:
            ids: tuple[int, ...] = await self._actor.process_ids.remote()
        except RayError as error:
            raise EngineLost(f"engine {self._name!r} does not answer") from error
        return ids

    async def close(self) -> None:
        """Stop the engine, for all its clients, and wait until its processes are gone."""
        if self._closed:
            return
        self._closed = True
        await self._channel.close()
        actor_pid: int | None = None
        try:
            async with asyncio.timeout(_CLOSE_S):
                host, actor_pid = await self._actor.shutdown.remote()
                if host != os.uname().nodename:
                    actor_pid = None
        except (RayError, TimeoutError):
            pass
        ray.kill(self._actor, no_restart=True)
        if actor_pid is not None:
            await asyncio.to_thread(_wait_until_gone, actor_pid)

    async def detach(self) -> None:
        """Leave the engine running for its other clients; this client's calls are aborted."""
        if not self._closed:
            self._closed = True
            await self._channel.close()


async def start_engine(spec: EngineSpec, *, detached: bool = False, lease_s: float = _LEASE_S) -> RayEngine:
    """Start an engine in a Ray actor named after `spec.name`, and wait until it serves.

    Args:
        spec: what to serve. `ray.init` must have been called.
        detached: the engine outlives this process; otherwise it ends with it.
        lease_s: a client with calls in flight that was not heard of for so long is taken for dead, and its
            calls are aborted.

    Raises:
        EngineError: it did not start.
        ValueError: an engine of this name is there already.
    """
    from engines.actor import EngineActor

    actor_class = ray.remote(
        name=_actor_name(spec.name),
        namespace=NAMESPACE,
        lifetime="detached" if detached else None,
        max_restarts=spec.max_restarts,
        num_cpus=spec.cpus,
        num_gpus=spec.gpus,
    )(EngineActor)
    actor = actor_class.remote(spec, lease_s)
    engine = RayEngine(actor, spec.name, lease_s)
    try:
        await engine.connect()
    except BaseException:
        # It may still be starting and hear nothing; its worker processes die with it.
        ray.kill(actor, no_restart=True)
        await engine.detach()
        raise
    return engine


async def attach_engine(name: str, *, lease_s: float = _LEASE_S) -> RayEngine:
    """A client of an engine that another process has started.

    Raises:
        EngineError: there is none of this name.
    """
    try:
        actor = await asyncio.to_thread(ray.get_actor, _actor_name(name), NAMESPACE)
    except ValueError as error:
        raise EngineError(f"there is no engine {name!r}") from error
    engine = RayEngine(actor, name, lease_s)
    await engine.connect()
    return engine


def _actor_name(name: str) -> str:
    return f"engine:{name}"


def _reason(error: RayError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _wait_until_gone(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(pid).wait(_CLOSE_S)
