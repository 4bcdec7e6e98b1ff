"""What an engine is: token ids in, token ids out.

Every engine, local or remote, is used through `Engine`. The types are frozen and picklable, since they
cross process borders.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

Role = Literal["generate", "reward"]


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Every field is honoured or the call is refused with `EngineRefused`.

    Args:
        max_new_tokens: at least 1.
        min_new_tokens: the end-of-turn token is held back until then.
        temperature: 0 is greedy.
        top_k: 0 is off.
        stop: strings that end the generation. The engine trims nothing: the ids of the stop string are
            among the tokens, and `Chunk.matched_stop` says which one it was.
        seed: makes the sample repeatable on the same engine build; None leaves it free.
        logit_bias: pairs of token id and bias.
        json_schema, regex: at most one; the output is constrained to it.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    json_schema: str | None = None
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation.

    Args:
        call_id: unique among the calls of this engine; the handle for `abort`.
        logprobs: whether each chunk carries its tokens' log-probabilities.
        top_logprobs: alternatives per token, 0 for none (needs `logprobs`).
        cache_salt: prefixes are shared only among calls of the same salt.
        trace: W3C trace context headers of the caller's span, handed to the engine.
    """

    call_id: str
    input_ids: tuple[int, ...]
    sampling: Sampling
    logprobs: bool = False
    top_logprobs: int = 0
    cache_salt: str | None = None
    priority: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Probabilities of `label_ids` as the next token after `input_ids`, normalised over the labels."""

    call_id: str
    input_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    cache_salt: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """What a reward head says of `input_ids`, read at their last token."""

    call_id: str
    input_ids: tuple[int, ...]
    cache_salt: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counts them, for one call.

    `prompt_tokens` includes `cached_tokens`, those whose KV was found in the prefix cache.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of a generation. The last one has `finish` and `usage`, and may have no tokens.

    `top_logprobs` has, per token, pairs of token id and log-probability, best first.
    `engine_s`, on the last one: seconds the call spent inside the engine, where the engine can tell.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    finish: Finish | None = None
    matched_stop: str | int | None = None
    usage: Usage | None = None
    engine_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """One probability per label, summing to 1. `engine_s` as in `Chunk`."""

    probabilities: tuple[float, ...]
    usage: Usage
    engine_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """All outputs of the head, raw: logits or whatever it was trained to give. `engine_s` as in `Chunk`.

    Nothing is decoded, so that `usage.completion_tokens` is 0.
    """

    outputs: tuple[float, ...]
    usage: Usage
    engine_s: float | None = None

    @property
    def value(self) -> float:
        """The output of a head that has just one.

        Raises:
            ValueError: it has more.
        """
        if len(self.outputs) != 1:
            raise ValueError(f"the reward head has {len(self.outputs)} outputs, not one")
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine serves. `context_tokens` bounds prompt and output together.

    `role`: what it can be asked for: "generate" (and score), or "reward" alone.
    """

    model: str
    engine: str
    engine_version: str
    device: str
    dtype: str
    context_tokens: int
    kv_tokens_total: int
    max_running: int
    role: Role = "generate"


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is now. KV in tokens."""

    running: int
    queued: int
    kv_tokens_used: int
    kv_tokens_total: int


class EngineError(Exception):
    """An engine call failed; the message is safe to show to a client."""


class EngineLost(EngineError):
    """The engine died, or was restarted, while the call ran. Another try may succeed."""


class EngineRefused(EngineError):
    """The engine cannot honour the call as it was put.

    Args:
        field: the parameter that it cannot honour, by its name in `Sampling` or the request.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Engine(Protocol):
    """One replica of one model.

    A model with a reward head gives rewards and nothing else; any other gives all but rewards. What it
    cannot give it refuses, with the field `role`.
    """

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Stream a generation. Closing the iterator early does not abort the call: call `abort`.

        Raises:
            EngineRefused: a parameter cannot be honoured.
            EngineLost: the engine died.
        """

    async def score(self, request: ScoreRequest) -> Scores:
        """Label probabilities. Raises as `generate`."""

    async def reward(self, request: RewardRequest) -> Reward:
        """What the model's reward head says. Raises as `generate`."""

    async def abort(self, call_ids: Sequence[str]) -> None:
        """End calls; each of their streams still gives its last chunk, with `Finish.ABORT` and usage.

        Unknown and finished calls are ignored.
        """

    async def info(self) -> EngineInfo: ...

    async def load(self) -> EngineLoad: ...

    async def ready(self) -> bool:
        """Whether calls can be served now. Never raises, answers within a second."""

    async def close(self) -> None:
        """Stop the engine and all its processes. Safe to call twice."""
