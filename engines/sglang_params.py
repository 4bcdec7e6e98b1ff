"""From our `Sampling` to SGLang's sampling parameters: every field is carried over or refused.

SGLang checks part of this itself, but late, in words without the field's name, and not all of it: it takes
`logit_bias` of NaN, an empty stop string and stop tokens outside the vocabulary without a word, and cuts
`max_new_tokens` down where prompt and output do not fit.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.protocol import EngineRefused, GenerateRequest, Sampling, ScoreRequest

_MAX_STOPS = 32
_MAX_GRAMMAR_CHARACTERS = 65_536
_MAX_TOP_LOGPROBS = 64
_MAX_BIASES = 4_096
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask of one engine.

    Args:
        vocabulary: number of token ids.
        context_tokens: most tokens of prompt and output together.
        prompt_tokens: most tokens of a prompt.
        unavailable: fields of `Sampling` that must keep their default on this engine.
    """

    vocabulary: int
    context_tokens: int
    prompt_tokens: int
    unavailable: frozenset[str] = frozenset()


def sampling_params(request: GenerateRequest, limits: Limits, stream_interval: int) -> dict[str, Any]:
    """SGLang's sampling parameters for a request. A seed is drawn where the request leaves it free.

    Raises:
        EngineRefused: names the first field that cannot be honoured.
    """
    check_generate(request, limits)
    s = request.sampling
    params: dict[str, Any] = {
        "max_new_tokens": s.max_new_tokens,
        "min_new_tokens": s.min_new_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k or -1,
        "min_p": s.min_p,
        "frequency_penalty": s.frequency_penalty,
        "presence_penalty": s.presence_penalty,
        "repetition_penalty": s.repetition_penalty,
        "ignore_eos": s.ignore_eos,
        "sampling_seed": secrets.randbits(63) if s.seed is None else s.seed,
        "skip_special_tokens": False,
        "stream_interval": stream_interval,
    }
    if s.stop:
        params["stop"] = list(s.stop)
    if s.stop_token_ids:
        params["stop_token_ids"] = list(s.stop_token_ids)
    if s.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in s.logit_bias}
    if s.json_schema is not None:
        params["json_schema"] = s.json_schema
    if s.regex is not None:
        params["regex"] = s.regex
    return params


def check_generate(request: GenerateRequest, limits: Limits) -> None:
    """Refuse what `sampling_params` could not carry over."""
    _check_ids(request.input_ids, "input_ids", limits)
    _check_sampling(request.sampling, limits)
    _check_grammar(request.sampling)
    room = limits.context_tokens - len(request.input_ids)
    _require(
        request.sampling.max_new_tokens <= room,
        "max_new_tokens",
        f"prompt ({len(request.input_ids)} tokens) and max_new_tokens ({request.sampling.max_new_tokens}) "
        f"exceed the context of {limits.context_tokens} tokens",
    )
    most = min(_MAX_TOP_LOGPROBS, limits.vocabulary)
    _require(0 <= request.top_logprobs <= most, "top_logprobs", f"must be between 0 and {most}")
    _require(request.logprobs or not request.top_logprobs, "top_logprobs", "needs logprobs")
    _require(-_INT64 <= request.priority < _INT64, "priority", "must fit into 64 bits")


def check_prompt(ids: tuple[int, ...], limits: Limits) -> None:
    """Refuse a prompt that the engine cannot take."""
    _check_ids(ids, "input_ids", limits)


def check_score(request: ScoreRequest, limits: Limits) -> None:
    """Refuse a score that cannot be computed."""
    _check_ids(request.input_ids, "input_ids", limits)
    labels = request.label_ids
    _require(bool(labels), "label_ids", "must not be empty")
    _require(len(set(labels)) == len(labels), "label_ids", "must be distinct")
    _require(all(0 <= i < limits.vocabulary for i in labels), "label_ids", "must be in the vocabulary")


def _check_ids(ids: tuple[int, ...], field: str, limits: Limits) -> None:
    _require(bool(ids), field, "must not be empty")
    _require(
        len(ids) <= limits.prompt_tokens,
        field,
        f"has {len(ids)} tokens, more than the {limits.prompt_tokens} that a prompt may have",
    )
    _require(min(ids) >= 0 and max(ids) < limits.vocabulary, field, "has ids outside the vocabulary")


def _check_sampling(s: Sampling, limits: Limits) -> None:
    default = Sampling(max_new_tokens=1)
    for name in sorted(limits.unavailable):
        _require(getattr(s, name) == getattr(default, name), name, "is not available on this engine")
    _require(s.max_new_tokens >= 1, "max_new_tokens", "must be at least 1")
    _require(0 <= s.min_new_tokens <= s.max_new_tokens, "min_new_tokens", "must be in 0..max_new_tokens")
    _require(math.isfinite(s.temperature) and s.temperature >= 0, "temperature", "must be finite, >= 0")
    _require(0 < s.top_p <= 1, "top_p", "must be in (0, 1]")
    _require(0 <= s.top_k < 2**30, "top_k", "must be 0 (off) or more")
    _require(0 <= s.min_p <= 1, "min_p", "must be in [0, 1]")
    _require(-2 <= s.frequency_penalty <= 2, "frequency_penalty", "must be in [-2, 2]")
    _require(-2 <= s.presence_penalty <= 2, "presence_penalty", "must be in [-2, 2]")
    _require(0 < s.repetition_penalty <= 2, "repetition_penalty", "must be in (0, 2]")
    _require(len(s.stop) <= _MAX_STOPS, "stop", f"has more than {_MAX_STOPS} strings")
    _require(all(s.stop), "stop", "has an empty string")
    _require(
        all(0 <= i < limits.vocabulary for i in s.stop_token_ids),
        "stop_token_ids",
        "must be in the vocabulary",
    )
    _require(not (s.ignore_eos and s.stop_token_ids), "stop_token_ids", "have no effect with ignore_eos")
    _require(s.seed is None or -_INT64 <= s.seed < _INT64, "seed", "must fit into 64 bits")
    _require(len(s.logit_bias) <= _MAX_BIASES, "logit_bias", f"has more than {_MAX_BIASES} entries")
    tokens = [token for token, _ in s.logit_bias]
    _require(len(set(tokens)) == len(tokens), "logit_bias", "names a token twice")
    _require(all(0 <= i < limits.vocabulary for i in tokens), "logit_bias", "must be in the vocabulary")
    _require(all(math.isfinite(bias) for _, bias in s.logit_bias), "logit_bias", "must be finite")


def _check_grammar(s: Sampling) -> None:
    _require(s.json_schema is None or s.regex is None, "regex", "cannot be combined with json_schema")
    if s.json_schema is not None:
        _require(len(s.json_schema) <= _MAX_GRAMMAR_CHARACTERS, "json_schema", "is too long")
        _require(_parses(json.loads, s.json_schema), "json_schema", "is not JSON")
    if s.regex is not None:
        _require(0 < len(s.regex) <= _MAX_GRAMMAR_CHARACTERS, "regex", "is empty or too long")


def _parses(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except (ValueError, RecursionError):
        return False
    return True


def _require(holds: bool, field: str, complaint: str) -> None:
    if not holds:
        raise EngineRefused(f"{field} {complaint}", field)
