"""What a verifier is to the runner: something that judges paths or answers and says what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from engines.protocol import Engine, Usage

Verdict: TypeAlias = Literal["right", "wrong", "unsure", "error"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A path that is put to a verifier.

    Args:
        call_id: unique; the handle for aborting it in an engine.
        question: what the client asked, as text.
        path_ids: all tokens from the first of the prompt to the end of the path.
        prompt_tokens: how many of them are the prompt's.
        text: what is judged, thinking included.
        engine: the replica that wrote it, where its prefix is cached.
    """

    call_id: str
    question: str
    path_ids: tuple[int, ...]
    prompt_tokens: int
    text: str
    engine: Engine
    cache_salt: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a verifier says.

    Args:
        score: 0..1; of a comparison the probability that the first one is better; None for no score.
        verdict: of a check; of two answers put to `equate`: right for the same, wrong for different.
        tokens: charged tokens that it cost.
        reason: why it could not say, in words that are safe to show.
        disagreement: verifiers of a chain differed.
    """

    score: float | None = None
    verdict: Verdict | None = None
    tokens: int = 0
    usage: Usage | None = None
    engine_s: float | None = None
    reason: str = ""
    disagreement: bool = False


class Scorer(Protocol):
    """Says how promising a path is."""

    name: str

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        """Charged tokens of one score at most, for a path of so many tokens."""

    async def score(self, subject: Subject) -> Judgement:
        """A judgement with a score.

        Raises:
            EngineError: it could not be had.
        """


class Checker(Protocol):
    """Says whether a finished answer is right."""

    name: str

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int: ...

    async def check(self, subject: Subject) -> Judgement:
        """A judgement with a verdict; a fault of the verifier is the verdict `error`, never `wrong`."""


class Comparer(Protocol):
    """Says which of two finished answers is better."""

    def most_compare_tokens(self) -> int:
        """Charged tokens of one comparison at most."""

    async def compare(self, first: Subject, second: Subject) -> Judgement:
        """A judgement with the probability that the first one is better. Raises as `Scorer.score`."""


class Equator(Protocol):
    """Says whether two answers are the same in mathematics."""

    async def same(self, answer: str, other: str) -> bool | None:
        """None when it cannot say."""


@dataclass(frozen=True, slots=True)
class Verifiers:
    """The verifiers of one query; None where there is none."""

    scorer: Scorer | None = None
    checker: Checker | None = None
    comparer: Comparer | None = None
    equator: Equator | None = None


NO_VERIFIERS = Verifiers()
