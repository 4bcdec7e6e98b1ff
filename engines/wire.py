"""What crosses between `RayEngine` and its actor, as plain tuples in pickled bytes.

Calls have numbers here, unique in one client. Bytes take Ray's short path, and tuples pickle several times
faster than dataclasses: the stream carries thousands of tokens a second beside the engine's own work.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

from engines.protocol import (
    Chunk,
    EngineError,
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

Request: TypeAlias = GenerateRequest | ScoreRequest | RewardRequest

Outcome: TypeAlias = Chunk | Scores | Reward | EngineError

Operation: TypeAlias = tuple[str, int, Request | None]
"""("call", number, request) or ("abort", number, None)."""

Report: TypeAlias = tuple[int, Outcome]
"""A call's number and what became of it."""


def pack_operations(operations: Sequence[Operation]) -> bytes:
    return pickle.dumps(operations, protocol=5)


def unpack_operations(data: bytes) -> list[Operation]:
    return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301  # from our own client


def pack_reports(reports: Sequence[Report]) -> bytes:
    return pickle.dumps([(number, *_flat(what)) for number, what in reports], protocol=5)


def unpack_reports(data: bytes) -> list[Report]:
    rows = pickle.loads(data)  # noqa: S301  # from our own actor
    return [(number, _report(kind, values)) for number, kind, *values in rows]


def _flat(what: Outcome) -> tuple[Any, ...]:
    if isinstance(what, Chunk):
        if what.finish is None:
            return ("tokens", what.token_ids, what.logprobs, what.top_logprobs)
        return (
            "end",
            what.token_ids,
            what.logprobs,
            what.top_logprobs,
            what.finish.value,
            what.matched_stop,
            _flat_usage(what.usage),
            what.engine_s,
        )
    if isinstance(what, Scores):
        return ("scores", what.probabilities, _flat_usage(what.usage), what.engine_s)
    if isinstance(what, Reward):
        return ("reward", what.outputs, _flat_usage(what.usage), what.engine_s)
    if isinstance(what, EngineRefused):
        return ("refused", str(what), what.field)
    return ("lost" if isinstance(what, EngineLost) else "error", str(what))


def _flat_usage(usage: Usage | None) -> tuple[int, int, int] | None:
    if usage is None:
        return None
    return (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _report(kind: str, values: list[Any]) -> Outcome:
    match kind:
        case "tokens":
            return Chunk(*values)
        case "end":
            ids, logprobs, top, finish, matched, usage, seconds = values
            counted = None if usage is None else Usage(*usage)
            return Chunk(ids, logprobs, top, Finish(finish), matched, counted, seconds)
        case "scores":
            probabilities, usage, seconds = values
            return Scores(probabilities, Usage(*usage), seconds)
        case "reward":
            outputs, usage, seconds = values
            return Reward(outputs, Usage(*usage), seconds)
        case "refused":
            return EngineRefused(*values)
        case "lost":
            return EngineLost(*values)
        case _:
            return EngineError(*values)
