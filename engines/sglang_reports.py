"""What SGLang hands back of a call, as our types."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from engines import sglang_errors
from engines.protocol import Chunk, EngineError, Finish, GenerateRequest, Usage


@dataclass(slots=True)
class CallState:
    """A call in flight. `rid` is its name in SGLang; `started` is of `time.perf_counter`."""

    rid: str
    prompt_tokens: int
    started: float
    completion_tokens: int = 0
    cached_tokens: int = 0


def chunk(out: dict[str, Any], call: CallState, request: GenerateRequest) -> Chunk:
    """One piece of a stream; the tokens it counts are added to the call's.

    Raises:
        EngineError: SGLang ended the call with an error.
    """
    meta = out["meta_info"]
    reason = meta["finish_reason"]
    # A call aborted while it queued ends with its last token once more, and without the prompt's count.
    repeated = "prompt_tokens" not in meta
    ids = () if repeated else tuple(out["output_ids"])
    call.completion_tokens += len(ids)
    call.cached_tokens = meta.get("cached_tokens", call.cached_tokens)
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    if request.logprobs and ids:
        logprobs = tuple(value for value, _, _ in meta["output_token_logprobs"][: len(ids)])
        if request.top_logprobs:
            top = tuple(
                tuple((token, value) for value, token, _ in row if value > -math.inf)
                for row in meta["output_top_logprobs"][: len(ids)]
            )
    if reason is None:
        return Chunk(ids, logprobs, top)
    if reason["type"] == "abort" and reason.get("status_code") is not None:
        raise sglang_errors.ended(reason, request)
    return Chunk(
        ids,
        logprobs,
        top,
        finish=Finish(reason["type"]),
        matched_stop=reason.get("matched"),
        usage=usage(meta, call),
        engine_s=time.perf_counter() - call.started,
    )


def usage(meta: dict[str, Any], call: CallState) -> Usage:
    """The tokens of a call that has ended."""
    # After a retraction SGLang counts its own output as cached too; prompt tokens are the bound.
    cached = min(meta.get("cached_tokens", call.cached_tokens), call.prompt_tokens)
    return Usage(call.prompt_tokens, cached, meta.get("completion_tokens", call.completion_tokens))


def softmax(logprobs: list[float]) -> tuple[float, ...]:
    """Probabilities over just these labels.

    Raises:
        EngineError: none of them has a finite log-probability.
    """
    top = max(logprobs)
    if not math.isfinite(top):
        raise EngineError("the engine gave no finite log-probability")
    weights = [math.exp(value - top) for value in logprobs]
    total = sum(weights)
    return tuple(weight / total for weight in weights)
