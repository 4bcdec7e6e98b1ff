"""A reasoning query as the orchestrator takes it, whatever front door it came through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from orchestrator.errors import QueryError

Effort: TypeAlias = Literal["auto", "low", "medium", "high", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """What the client said of sampling; None or empty where it said nothing. Units as in `Sampling`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    json_schema: str | None = None
    regex: str | None = None


VerifierKind: TypeAlias = Literal["process_reward", "judge", "math", "exact", "regex", "json_schema", "code"]
VERIFIER_KINDS: tuple[VerifierKind, ...] = get_args(VerifierKind)


@dataclass(frozen=True, slots=True)
class VerifierWish:
    """One verifier that the client asks for.

    Args:
        expected: the right answer, for `math` and `exact`.
        pattern: for `regex`.
        schema: for `json_schema`, as JSON.
        asserts: for `code`: Python statements that fail when the code is wrong.
        cases: for `code`: pairs of standard input and the output that it must give.
    """

    kind: VerifierKind
    expected: str | None = None
    pattern: str | None = None
    schema: str | None = None
    asserts: str | None = None
    cases: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReasonRequest:
    """One query.

    Args:
        model: a served model's name.
        effort: how hard to think when no technique is named.
        technique: a registered technique's name; `params` are its parameters.
        max_new_tokens: limit of one sample; clamped to what the model's context leaves.
        max_total_tokens: hard cap over prompt, all samples and all scores.
        deadline_ms: milliseconds from admission to the answer.
        seed: makes the search repeatable; a random one is drawn and reported when None.
        verifiers: who judges paths and answers; empty for the model's own process reward, if it has one.
        verifier_mode: how several of them judge an answer together.
        keep_log: return the event log with the outcome.
    """

    model: str
    messages: tuple[Message, ...]
    effort: Effort = "auto"
    technique: str | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    sampling: SamplingWish = SamplingWish()
    max_new_tokens: int | None = None
    max_total_tokens: int | None = None
    deadline_ms: int | None = None
    seed: int | None = None
    verifiers: tuple[VerifierWish, ...] = ()
    verifier_mode: Literal["fallback", "all"] = "fallback"
    keep_log: bool = False


class RequestRefused(QueryError):
    """The request cannot be honoured as it was put; names the field by the client's name for it."""

    def __init__(self, message: str, *, field: str, code: str) -> None:
        super().__init__(message, code=code, status=400, field=field)
