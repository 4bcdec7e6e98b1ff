"""SGLang inside this process, behind our types.

Use it through `engines.ray_engine`; on its own it serves benchmarks and the Ray actor.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from engines import sglang_cpu, sglang_cuda, sglang_errors
from engines.grammar_check import GrammarCheck
from engines.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineLoad,
    EngineRefused,
    GenerateRequest,
    Reward,
    RewardRequest,
    Role,
    ScoreRequest,
    Scores,
    Usage,
)
from engines.sglang_gate import install_gate
from engines.sglang_params import Limits, check_prompt, check_score, sampling_params
from engines.sglang_reports import CallState, chunk, softmax, usage
from engines.sglang_reward import RewardPort, check_role
from engines.spec import EngineSpec

_ARGUMENTS: dict[str, Any] = {
    "incremental_streaming_output": True,
    "enable_priority_scheduling": True,
    "constrained_json_disable_any_whitespace": True,
    "log_level": "error",
}
_RETRY_ABORT_S = 0.005


class SGLangEngine:
    """One SGLang engine with its workers as child processes.

    Log-probabilities are those of the model's distribution after penalties, bias and grammar, before
    temperature, top-k, top-p and min-p, so that they do not depend on what shares the batch.

    Implements `engines.protocol.Engine`; closing a stream early aborts its call at once.
    """

    def __init__(self, spec: EngineSpec) -> None:
        """Start the engine; blocks until it can serve.

        Raises:
            EngineError: SGLang could not start, or the model has another role.
        """
        check_role(spec.model_path, spec.role)
        profile = sglang_cuda if spec.device == "cuda" else sglang_cpu
        # SGLang reads this on import. By default its log-probabilities are those before temperature in an
        # all-greedy batch, and those after it in any other.
        os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
        arguments = {**_ARGUMENTS, **_spec_arguments(spec), **spec.engine_args}
        try:
            self._engine = profile.start(arguments, spec.threads)
        except (Exception, SystemExit) as error:
            raise EngineError(f"SGLang did not start: {error}") from error
        self._manager = self._engine.tokenizer_manager
        # It would answer the death of a worker with SIGQUIT to this whole process.
        self._manager._subprocess_watchdog.stop()
        self._gate = install_gate(self._manager)
        self._rewards = RewardPort(self._manager) if spec.role == "reward" else None
        self._spec = spec
        longest = self._manager.max_req_input_len + 5  # SGLang keeps 5 back for a prompt, 1 for an output
        self._limits = Limits(
            vocabulary=self._manager.model_config.vocab_size,
            context_tokens=longest - 1,
            prompt_tokens=longest - 6,
            unavailable=profile.unavailable({**profile.ARGUMENTS, **arguments}),
        )
        self._grammars = GrammarCheck(
            spec.model_path, sorted(self._manager.model_config.hf_eos_token_id or ())
        )
        self._calls: dict[str, CallState] = {}
        self._numbers = count()
        self._closed = False

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """SGLang's scheduler and detokenizer processes; the engine cannot live without any of them."""
        return tuple(self._engine.get_all_child_pids())

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        self._require("generate")
        params = sampling_params(request, self._limits, self._spec.stream_interval)
        call = self._open(request)
        try:
            for name in ("json_schema", "regex"):
                if (grammar := getattr(request.sampling, name)) is not None:
                    await self._grammars.check(name, grammar)
            stream = await self._engine.async_generate(
                input_ids=list(request.input_ids),
                sampling_params=params,
                stream=True,
                rid=call.rid,
                return_logprob=request.logprobs,
                top_logprobs_num=request.top_logprobs,
                priority=request.priority,
                cache_salt=request.cache_salt,
                external_trace_header=dict(request.trace) or None,
            )
            async for out in stream:
                yield chunk(out, call, request)
        except ValueError as error:
            raise sglang_errors.refused(error) from error
        finally:
            del self._calls[request.call_id]

    async def score(self, request: ScoreRequest) -> Scores:
        self._require("generate")
        check_score(request, self._limits)
        call = self._open(request)
        try:
            out = await self._engine.async_generate(
                input_ids=list(request.input_ids),
                sampling_params={"max_new_tokens": 1, "temperature": 0.0},
                rid=call.rid,
                return_logprob=True,
                token_ids_logprob=list(request.label_ids),
                priority=0,
                cache_salt=request.cache_salt,
                external_trace_header=dict(request.trace) or None,
            )
        except ValueError as error:
            raise sglang_errors.refused(error) from error
        finally:
            del self._calls[request.call_id]
        meta = out["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise EngineError("the score was aborted")
        by_id = {token: value for value, token, _ in meta["output_token_ids_logprobs"][0]}
        return Scores(
            probabilities=softmax([by_id[label] for label in request.label_ids]),
            usage=usage(meta, call),
            engine_s=time.perf_counter() - call.started,
        )

    async def reward(self, request: RewardRequest) -> Reward:
        self._require("reward")
        assert self._rewards is not None
        check_prompt(request.input_ids, self._limits)
        call = self._open(request)
        try:
            outputs, cached = await self._rewards.ask(request, call.rid)
        finally:
            del self._calls[request.call_id]
        counted = Usage(call.prompt_tokens, cached, 0)
        return Reward(outputs, counted, engine_s=time.perf_counter() - call.started)

    def _require(self, role: Role) -> None:
        if self._spec.role != role:
            raise EngineRefused(f"the engine has the role {self._spec.role!r}, not {role!r}", "role")

    def _open(self, request: GenerateRequest | ScoreRequest | RewardRequest) -> CallState:
        if request.call_id in self._calls:
            raise EngineRefused("call_id is in use", "call_id")
        # Of one length, since SGLang aborts every request whose id begins with the given one.
        rid = f"{next(self._numbers):016x}"
        call = CallState(rid, len(request.input_ids), time.perf_counter())
        self._calls[request.call_id] = call
        return call

    async def freeze_garbage(self) -> None:
        """Take what is there now out of garbage collection, here and in the scheduler.

        A collection that walks all that was imported stalls every call for about a tenth of a second.
        """
        await self._manager.freeze_gc()

    def expect(self, count: int) -> None:
        """Announce that so many calls are about to be made, so that they reach the scheduler together."""
        self._gate.expect(count)

    async def abort(self, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            self._abort(call_id, self._calls.get(call_id))

    def _abort(self, call_id: str, call: CallState | None) -> None:
        if call is None or self._calls.get(call_id) is not call:
            return
        state = self._manager.rid_to_state.get(call.rid)
        if state is not None and state.dispatched:
            self._manager.abort_request(rid=call.rid)
        else:
            # SGLang would send the abort ahead of the request, where it hits nothing.
            asyncio.get_running_loop().call_later(_RETRY_ABORT_S, self._abort, call_id, call)

    async def info(self) -> EngineInfo:
        from sglang.version import __version__

        load = await self.load()
        limits, rewards = self._limits, self._spec.role == "reward"
        return EngineInfo(
            model=Path(self._spec.model_path).name,
            engine="sglang",
            engine_version=__version__,
            device=self._spec.device,
            dtype=str(self._manager.model_config.dtype).removeprefix("torch."),
            context_tokens=limits.prompt_tokens if rewards else limits.context_tokens,
            kv_tokens_total=load.kv_tokens_total,
            max_running=self._spec.max_running_requests,
            role=self._spec.role,
        )

    async def load(self) -> EngineLoad:
        """As the scheduler published it last, in shared memory: it neither waits for it nor disturbs it."""
        snapshots = await self._manager.get_loads()
        return EngineLoad(
            running=sum(s.num_running_reqs for s in snapshots),
            queued=sum(s.num_waiting_reqs for s in snapshots),
            kv_tokens_used=sum(s.num_used_tokens for s in snapshots),
            kv_tokens_total=sum(s.max_total_num_tokens for s in snapshots),
        )

    async def ready(self) -> bool:
        return not self._closed

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._grammars.close()
            await asyncio.to_thread(self._engine.shutdown)


def _spec_arguments(spec: EngineSpec) -> dict[str, Any]:
    return {
        "model_path": spec.model_path,
        "device": spec.device,
        "dtype": spec.dtype,
        "max_total_tokens": spec.max_total_tokens,
        "max_running_requests": spec.max_running_requests,
        "context_length": spec.context_tokens,
        "stream_interval": spec.stream_interval,
        "is_embedding": spec.role == "reward",
    }
