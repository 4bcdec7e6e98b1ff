"""An engine that follows a script, for tests alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from engines.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineLoad,
    EngineLost,
    EngineRefused,
    Finish,
    GenerateRequest,
    Reward,
    RewardRequest,
    ScoreRequest,
    Scores,
    Usage,
)
from engines.scripted_prefixes import PrefixMemory
from engines.wire import Request


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one call goes.

    Args:
        chunk_tokens: tokens per chunk; the first chunk has one.
        delay_s: handed to the engine's `pause` before each chunk, or before the score or reward.
        hang_after: tokens after which nothing more comes until the call is aborted.
        lost_after: tokens after which it fails with `EngineLost`.
        refuse: the field that it is refused for.
    """

    chunk_tokens: int = 8
    delay_s: float = 0.0
    hang_after: int | None = None
    lost_after: int | None = None
    refuse: str | None = None


@dataclass(slots=True)
class _Live:
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False


class ScriptedEngine:
    """Implements `engines.protocol.Engine` without a model, deterministically.

    The prefix cache is played by remembering each salt's paths: `cached_tokens` is the longest prefix
    shared with one of them, but never the whole prompt.

    Args:
        script: the tokens that follow a prompt, by prompt and seed. They end with one of `eos_ids`, or else
            the generation ends with them, as `STOP`. Needed unless there is `reward`.
        score: label probabilities by prompt and labels, before they are normalised; uniform by default.
        reward: outputs of the reward head by prompt. With it the engine has the role "reward", and refuses
            generations and scores.
        behave: how a call goes; it sees the request and the call's number, counted from 0.
        pause: how time passes; `asyncio.sleep` by default. A test may wait for an event of its own here.
        decode: text of token ids, for stop strings. Without it they are refused.
        logprob: log-probability of each token.

    Attributes:
        requests, score_requests, reward_requests: all requests so far.
        aborts: ids of all calls that `abort` was asked to end, known or not.
    """

    def __init__(
        self,
        script: Callable[[tuple[int, ...], int | None], Sequence[int]] | None = None,
        *,
        score: Callable[[tuple[int, ...], tuple[int, ...]], Sequence[float]] | None = None,
        reward: Callable[[tuple[int, ...]], Sequence[float]] | None = None,
        behave: Callable[[Request, int], Behaviour] | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        decode: Callable[[Sequence[int]], str] | None = None,
        logprob: float = -0.5,
        eos_ids: Sequence[int] = (),
        info: EngineInfo | None = None,
    ) -> None:
        if (script is None) == (reward is None):
            raise ValueError("an engine has either a script or rewards")
        self._script = script
        self._score = score
        self._reward = reward
        self._behave = behave
        self._pause = pause
        self._decode = decode
        self._logprob = logprob
        self._eos_ids = frozenset(eos_ids)
        self._info = info or EngineInfo(
            model="scripted",
            engine="scripted",
            engine_version="1",
            device="cpu",
            dtype="float32",
            context_tokens=4096,
            kv_tokens_total=65_536,
            max_running=64,
            role="generate" if reward is None else "reward",
        )
        self._live: dict[str, _Live] = {}
        self._prefixes = PrefixMemory()
        self._calls = 0
        self._available = True
        self._closed = False
        self.requests: list[GenerateRequest] = []
        self.score_requests: list[ScoreRequest] = []
        self.reward_requests: list[RewardRequest] = []
        self.aborts: list[str] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        behaviour = self._next_behaviour(request)
        self._check(request, behaviour)
        live = self._enter(request.call_id)
        cached = self._prefixes.shared(request.input_ids, request.cache_salt)
        ids, finish, matched = self._output(request)
        sent = 0
        try:
            while True:
                size = behaviour.chunk_tokens if sent else 1
                upto = min(len(ids), sent + size, *_bounds(behaviour))
                stuck = behaviour.hang_after is not None and sent >= behaviour.hang_after
                await self._wait(live, None if stuck else behaviour.delay_s)
                if not sent:
                    self._prefixes.add(request.input_ids, request.cache_salt)
                if live.lost or sent == behaviour.lost_after:
                    raise EngineLost("the scripted engine was lost")
                piece = () if live.ended.is_set() else ids[sent:upto]
                sent += len(piece)
                if live.ended.is_set():
                    finish, matched = Finish.ABORT, None
                done = live.ended.is_set() or sent == len(ids)
                yield self._chunk(
                    request, piece, (finish, matched, Usage(len(request.input_ids), cached, sent)), done
                )
                if done:
                    return
        finally:
            self._leave(request.call_id, live)
            self._prefixes.add(request.input_ids + ids[:sent], request.cache_salt)

    async def score(self, request: ScoreRequest) -> Scores:
        self.score_requests.append(request)
        cached, engine_s = await self._one(request)
        labels = request.label_ids
        raw = self._score(request.input_ids, labels) if self._score else [1.0] * len(labels)
        total = sum(raw)
        usage = Usage(len(request.input_ids), cached, 1)
        return Scores(tuple(value / total for value in raw), usage, engine_s)

    async def reward(self, request: RewardRequest) -> Reward:
        self.reward_requests.append(request)
        cached, engine_s = await self._one(request)
        assert self._reward is not None
        outputs = tuple(self._reward(request.input_ids))
        return Reward(outputs, Usage(len(request.input_ids), cached, 0), engine_s)

    async def _one(self, request: ScoreRequest | RewardRequest) -> tuple[int, float]:
        """Go through a call that has one report: its cached tokens, and its seconds in the engine."""
        behaviour = self._next_behaviour(request)
        self._check(request, behaviour)
        live = self._enter(request.call_id)
        cached = self._prefixes.shared(request.input_ids, request.cache_salt)
        try:
            await self._wait(live, behaviour.delay_s if behaviour.hang_after is None else None)
            if live.lost or behaviour.lost_after is not None:
                raise EngineLost("the scripted engine was lost")
            if live.ended.is_set():
                raise EngineError("the call was aborted")
        finally:
            self._leave(request.call_id, live)
        self._prefixes.add(request.input_ids, request.cache_salt)
        return cached, behaviour.delay_s

    async def abort(self, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            self.aborts.append(call_id)
            if call_id in self._live:
                self._live[call_id].ended.set()

    async def info(self) -> EngineInfo:
        return self._info

    async def load(self) -> EngineLoad:
        return EngineLoad(len(self._live), 0, 0, self._info.kv_tokens_total)

    async def ready(self) -> bool:
        return self._available and not self._closed

    async def close(self) -> None:
        self._closed = True
        self.lose()

    def lose(self) -> None:
        """The engine dies: calls in flight and new ones fail with `EngineLost`, the cache is empty."""
        self._available = False
        self._prefixes.clear()
        for live in self._live.values():
            live.lost = True
            live.ended.set()

    def recover(self) -> None:
        """The engine is back."""
        self._available = True

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the calls in flight."""
        return tuple(self._live)

    def _next_behaviour(self, request: Request) -> Behaviour:
        number = self._calls
        self._calls += 1
        return self._behave(request, number) if self._behave else Behaviour()

    def _check(self, request: Request, behaviour: Behaviour) -> None:
        if not self._available or self._closed:
            raise EngineLost("the scripted engine is not available")
        if isinstance(request, RewardRequest) == (self._reward is None):
            raise EngineRefused("the scripted engine has another role", "role")
        if behaviour.refuse is not None:
            raise EngineRefused(f"{behaviour.refuse} is refused by the script", behaviour.refuse)
        if request.call_id in self._live:
            raise EngineRefused("call_id is in use", "call_id")
        room = self._info.context_tokens - len(request.input_ids)
        if isinstance(request, GenerateRequest):
            sampling = request.sampling
            if sampling.max_new_tokens < 1 or sampling.max_new_tokens > room:
                raise EngineRefused("max_new_tokens exceeds the context", "max_new_tokens")
            if sampling.stop and self._decode is None:
                raise EngineRefused("stop needs a script with text", "stop")
            if sampling.json_schema is not None or sampling.regex is not None:
                name = "regex" if sampling.json_schema is None else "json_schema"
                raise EngineRefused(f"{name} is not for scripts", name)
        elif room < 1:
            raise EngineRefused("input_ids exceed the context", "input_ids")

    def _enter(self, call_id: str) -> _Live:
        live = self._live[call_id] = _Live()
        return live

    def _leave(self, call_id: str, live: _Live) -> None:
        if self._live.get(call_id) is live:
            del self._live[call_id]

    async def _wait(self, live: _Live, delay_s: float | None) -> None:
        """Pause, until the call is ended at the latest; without a delay, wait for just that."""
        ended = asyncio.ensure_future(live.ended.wait())
        paused = None if delay_s is None else asyncio.ensure_future(self._pause(delay_s))
        waiting = {ended} if paused is None else {ended, paused}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _output(self, request: GenerateRequest) -> tuple[tuple[int, ...], Finish, str | int | None]:
        sampling = request.sampling
        enders = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos_ids)
        ids: list[int] = []
        assert self._script is not None
        for token in self._script(request.input_ids, sampling.seed):
            ids.append(token)
            if token in enders and len(ids) > sampling.min_new_tokens:
                return tuple(ids), Finish.STOP, token
            if self._decode is not None and sampling.stop:
                text = self._decode(ids)
                for stop in sampling.stop:
                    if stop in text:
                        return tuple(ids), Finish.STOP, stop
            if len(ids) == sampling.max_new_tokens:
                return tuple(ids), Finish.LENGTH, None
        return tuple(ids), Finish.STOP, None

    def _chunk(
        self,
        request: GenerateRequest,
        ids: tuple[int, ...],
        end: tuple[Finish, str | int | None, Usage],
        done: bool,
    ) -> Chunk:
        logprobs = (self._logprob,) * len(ids) if request.logprobs else ()
        top = tuple(((token, self._logprob),) for token in ids) if request.top_logprobs else ()
        if not done:
            return Chunk(ids, logprobs, top)
        finish, matched, usage = end
        return Chunk(ids, logprobs, top, finish, matched, usage, 0.0)


def _bounds(behaviour: Behaviour) -> list[int]:
    return [at for at in (behaviour.hang_after, behaviour.lost_after) if at is not None]
