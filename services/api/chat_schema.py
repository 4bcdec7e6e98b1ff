"""`POST /v1/chat/completions`: the request, and the OpenAI shapes of its answer."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from orchestrator.outcome import Outcome
from orchestrator.request import Effort, ReasonRequest, SamplingWish
from services.api.fields import (
    LogitBias,
    ModelName,
    Penalty,
    Positive,
    ResponseFormat,
    Seed,
    StopString,
    Strict,
    Temperature,
    TopP,
)
from services.api.messages import Messages, core_messages
from services.api.options import PonderaOptions
from services.api.receipt_schema import PonderaAnswer
from services.api.verifier_schema import wishes


class StreamOptions(Strict):
    include_usage: bool = False


class ChatRequest(Strict):
    """The fields of OpenAI's schema that are honoured; any other is refused by name."""

    model: ModelName
    messages: Messages
    stream: bool = False
    stream_options: StreamOptions | None = None
    reasoning_effort: Effort | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = None
    seed: Seed | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    response_format: ResponseFormat | None = None
    pondera: PonderaOptions = PonderaOptions()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' goes with 'stream': true")
        efforts = {e for e in (self.reasoning_effort, self.pondera.effort) if e is not None}
        if len(efforts) > 1:
            raise ValueError("'reasoning_effort' and 'pondera.effort' differ; give one")
        if self.pondera.technique is not None and efforts:
            raise ValueError("give an effort or a technique, not both")
        limits = {m for m in (self.max_tokens, self.max_completion_tokens) if m is not None}
        if len(limits) > 1:
            raise ValueError("'max_tokens' and 'max_completion_tokens' differ; give one")
        return self

    def core(self) -> ReasonRequest:
        options = self.pondera
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return ReasonRequest(
            model=self.model,
            messages=core_messages(self.messages),
            effort=self.reasoning_effort or options.effort or "auto",
            technique=options.technique,
            params=options.params,
            sampling=SamplingWish(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=options.top_k,
                min_p=options.min_p,
                frequency_penalty=self.frequency_penalty,
                presence_penalty=self.presence_penalty,
                repetition_penalty=options.repetition_penalty,
                stop=stop,
                logit_bias=tuple((int(k), v) for k, v in (self.logit_bias or {}).items()),
                json_schema=self.response_format.schema_text() if self.response_format else None,
            ),
            max_new_tokens=self.max_completion_tokens or self.max_tokens,
            max_total_tokens=options.max_total_tokens,
            deadline_ms=options.deadline_ms,
            seed=self.seed,
            verifiers=wishes(options.verifiers),
            verifier_mode=options.verifier_mode,
        )


def usage(outcome: Outcome) -> dict[str, Any]:
    """OpenAI usage: all samples and scores; what is not in the answer's text counts as reasoning."""
    tokens = outcome.receipt.tokens
    completion = tokens.generated + tokens.verifier
    return {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": completion,
        "total_tokens": tokens.charged,
        "prompt_tokens_details": {"cached_tokens": min(tokens.first_call_cached, tokens.prompt)},
        "completion_tokens_details": {"reasoning_tokens": completion - outcome.answer_tokens},
    }


def completion(outcome: Outcome, *, created: int) -> dict[str, Any]:
    """The body of a non-streamed answer."""
    return {
        "id": completion_id(outcome.receipt.search_id),
        "object": "chat.completion",
        "created": created,
        "model": outcome.receipt.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": outcome.text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason(outcome),
            }
        ],
        "usage": usage(outcome),
        "pondera": PonderaAnswer.of(outcome).model_dump(mode="json"),
    }


def completion_id(search_id: str) -> str:
    return "chatcmpl-" + search_id.removeprefix("srch-")


def finish_reason(outcome: Outcome) -> str:
    return "stop" if outcome.complete else "length"


def chunk(
    search_id: str,
    *,
    created: int,
    model: str,
    delta: dict[str, Any] | None = None,
    finish: str | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """One `chat.completion.chunk`; without `delta` it has no choices, as for the closing usage."""
    choices = (
        [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    )
    return {
        "id": completion_id(search_id),
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "choices": choices,
        **extra,
    }
