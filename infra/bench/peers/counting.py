"""Tokens, counted the same way whoever spent them.

A peer's tokens are what its engine counted: the usage that SGLang states of every request that ended in it,
read when the engine is idle again. Requests that the client dropped are in it, with all that was generated
for them. Ours are the sums over our receipts, whose figures come from our engine's usage.

The comparable figure is `work`: tokens decoded, by samples and by whatever rates them, and the suffix tokens
that put a path to the process reward model. Prompts are kept apart, as freshly prefilled and as cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

PRM_TOKENS = 2
"""Of one score by the process reward model: the suffix token and the label that is decoded."""

COUNTED_PATH = "/bench/counted"
"""Where the peers' server says what it has counted."""


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


@dataclass(slots=True)
class Counters:
    """What an engine has counted since it started, over all requests that have ended in it."""

    generated: int = 0
    prompt: int = 0
    cached: int = 0
    requests: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


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
