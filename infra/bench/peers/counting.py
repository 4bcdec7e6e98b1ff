"""Tokens, counted the same way whoever spent them.

A peer's tokens are what its engine counted: the difference of SGLang's own Prometheus counters over a turn,
read when the engine is idle again. Requests that the client dropped are in it, with all that was generated
for them. Ours are the sums over our receipts, whose figures come from our engine's usage.

The comparable figure is `work`: tokens decoded, by samples and by whatever rates them, and the suffix tokens
that put a path to the process reward model. Prompts are kept apart, as freshly prefilled and as cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PRM_TOKENS = 2
"""Of one score by the process reward model: the suffix token and the label that is decoded."""

_SAMPLE = re.compile(r"^(sglang:\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one turn.

    Args:
        generated: decoded, without the labels of the process reward model.
        verifier: of the process reward model: suffixes and labels.
        fresh, cached: prompt tokens over all requests to the engine.
        requests: that the engine finished; for our side, calls of the engine.
    """

    generated: int = 0
    verifier: int = 0
    fresh: int = 0
    cached: int = 0
    requests: int = 0

    @property
    def work(self) -> int:
        return self.generated + self.verifier

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.generated + other.generated,
            self.verifier + other.verifier,
            self.fresh + other.fresh,
            self.cached + other.cached,
            self.requests + other.requests,
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """SGLang's totals since it started."""

    generated: int
    prompt: int
    cached: int
    requests: int


def counters(exposition: str) -> Counters:
    """Read them from the text of `/metrics`, added up over labels; a counter never touched is missing: 0."""
    totals: dict[str, float] = {}
    for name, value in _SAMPLE.findall(exposition):
        totals[name] = totals.get(name, 0.0) + float(value)
    return Counters(
        generated=int(totals.get("sglang:generation_tokens_total", 0)),
        prompt=int(totals.get("sglang:prompt_tokens_total", 0)),
        cached=int(totals.get("sglang:cached_tokens_total", 0)),
        requests=int(totals.get("sglang:num_requests_total", 0)),
    )


def spent(before: Counters, after: Counters, scores: int) -> Tokens:
    """A peer's tokens between two readings, of which `scores` requests were scores by the PRM."""
    prompt, cached = after.prompt - before.prompt, after.cached - before.cached
    return Tokens(
        generated=after.generated - before.generated - scores,
        verifier=PRM_TOKENS * scores,
        # The suffix stands among the prompt tokens of a score; it is counted once, as the verifier's.
        fresh=prompt - cached - scores,
        cached=cached,
        requests=after.requests - before.requests,
    )


def receipted(receipts: Iterable[Mapping[str, Any]]) -> Tokens:
    """Our tokens over these receipts."""
    total = Tokens()
    for receipt in receipts:
        tokens, calls = receipt["tokens"], receipt["calls"]
        scores = calls["verifier"]
        total += Tokens(
            generated=tokens["generated"],
            verifier=tokens["verifier"],
            fresh=tokens["prefill_fresh"] - scores,
            cached=tokens["prefill_cached"],
            requests=calls["generate"] + scores,
        )
    return total
