"""What a chain of verifiers says of a finished answer: whom to ask next, and what it comes to.

A verifier gives one of four verdicts: `right` and `wrong` are definite; `unsure` carries a score; `error`
says that it could not judge, and is never counted for or against the answer. Nothing here runs a verifier.

Modes. `fallback`: verifiers are asked one after another until one is definite; those before it that were
unsure or failed have no say. `all`: every one is asked, and one definite `wrong` outweighs any number of
`right`. In both modes nothing but `unsure` gives the mean of the scores, and nothing but `error` an error.

Known limits: verifiers count equally; the mean of scores is right only as far as they share a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Literal, TypeAlias

from search.params import require_one_of

VerdictKind: TypeAlias = Literal["right", "wrong", "unsure", "error"]
ChainMode: TypeAlias = Literal["fallback", "all"]

MAX_VERIFIERS = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verifier, or a chain of them, says of an answer.

    Args:
        kind: `right`, `wrong`, `unsure` or `error`.
        score: how probably the answer is right, 0..1: with `unsure` only.
        reason: why, for the receipt.

    Raises:
        ValueError: the kind is none of these, or the score is missing, out of its range or out of place.
    """

    kind: VerdictKind
    score: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, ("right", "wrong", "unsure", "error"))
        if (self.score is not None) != (self.kind == "unsure"):
            raise ValueError("score must be given with `unsure`, and with nothing else")
        if self.score is not None and not (isfinite(self.score) and 0 <= self.score <= 1):
            raise ValueError(f"score must be a number in 0..1, not {self.score!r}")

    @property
    def definite(self) -> bool:
        """Whether it is `right` or `wrong`."""
        return self.kind in ("right", "wrong")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a chain's verdicts come to.

    Args:
        verdict: the combined verdict.
        decided_by: the verifiers it rests on, in the chain's order.
        failed: those that gave `error`, in the chain's order.
        disagreement: definite verdicts differ, or a confident score contradicts one of them.
        complete: the chain has nobody left to ask. Otherwise this is where it stands now.
    """

    verdict: Verdict
    decided_by: tuple[str, ...]
    failed: tuple[str, ...]
    disagreement: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Named verifiers in the order in which they are asked.

    Args:
        names: 1..16 different names.
        mode: `fallback` or `all`; see the module's docstring.
        confident: an `unsure` score of at least this much contradicts `wrong`, and one of at most 1 minus
            this contradicts `right`. Above 0.5, at most 1.

    Raises:
        ValueError: a value is out of its range.
    """

    names: tuple[str, ...]
    mode: ChainMode = "fallback"
    confident: float = 0.9

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= MAX_VERIFIERS or "" in self.names:
            raise ValueError(f"names must be 1..{MAX_VERIFIERS} names that are not empty")
        if len(set(self.names)) != len(self.names):
            raise ValueError("names must differ from one another")
        require_one_of("mode", self.mode, ("fallback", "all"))
        if not 0.5 < self.confident <= 1:
            raise ValueError(f"confident must be a number above 0.5 and at most 1, not {self.confident!r}")

    def pending(self, verdicts: Mapping[str, Verdict]) -> tuple[str, ...]:
        """The verifiers to run next, given those that have answered; they may run at once.

        `fallback` names at most one. Empty when the chain is complete.

        Raises:
            ValueError: a verdict is by none of the chain's verifiers.
        """
        self._refuse_strangers(verdicts)
        if self.mode == "all":
            return tuple(name for name in self.names if name not in verdicts)
        for name in self.names:
            if name not in verdicts:
                return (name,)
            if verdicts[name].definite:
                break
        return ()

    def judge(self, verdicts: Mapping[str, Verdict]) -> Judgement:
        """What the verdicts so far come to. The order of the mapping is of no account.

        Raises:
            ValueError: a verdict is by none of the chain's verifiers.
        """
        complete = not self.pending(verdicts)
        given = {name: verdicts[name] for name in self.names if name in verdicts}
        verdict, decided_by = self._combined(given)
        return Judgement(
            verdict,
            decided_by,
            failed=tuple(name for name, v in given.items() if v.kind == "error"),
            disagreement=self._disagree(given),
            complete=complete,
        )

    def _combined(self, given: dict[str, Verdict]) -> tuple[Verdict, tuple[str, ...]]:
        definite = {name: v for name, v in given.items() if v.definite}
        if definite:
            if self.mode == "fallback":
                name = next(iter(definite))
                return definite[name], (name,)
            kind: VerdictKind = "wrong" if any(v.kind == "wrong" for v in definite.values()) else "right"
            deciding = {name: v for name, v in definite.items() if v.kind == kind}
            return Verdict(kind, reason=_reasons(deciding)), tuple(deciding)
        unsure = {name: v for name, v in given.items() if v.score is not None}
        if unsure:
            # fsum is exact before its last rounding, so that the order of the verifiers is of no account.
            mean = fsum(v.score or 0.0 for v in unsure.values()) / len(unsure)
            return Verdict("unsure", mean, _reasons(unsure)), tuple(unsure)
        return Verdict("error", reason=_reasons(given) or "no verifier has answered"), ()

    def _disagree(self, given: dict[str, Verdict]) -> bool:
        kinds = {v.kind for v in given.values() if v.definite}
        scores = [v.score for v in given.values() if v.score is not None]
        return (
            len(kinds) > 1
            or ("wrong" in kinds and any(s >= self.confident for s in scores))
            or ("right" in kinds and any(1 - s >= self.confident for s in scores))
        )

    def _refuse_strangers(self, verdicts: Mapping[str, Verdict]) -> None:
        strangers = sorted(set(verdicts) - set(self.names))
        if strangers:
            raise ValueError(f"verdicts by {', '.join(strangers)}, which the chain does not name")


def _reasons(verdicts: Mapping[str, Verdict]) -> str:
    return "; ".join(f"{name}: {v.reason}" for name, v in verdicts.items() if v.reason)
