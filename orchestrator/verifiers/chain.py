"""Several verifiers as one: who is asked, and what their verdicts come to (`search.verdict`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from engines.protocol import EngineError, Usage
from orchestrator.verifiers.port import Checker, Judgement, Scorer, Subject
from search.verdict import Chain, ChainMode, Verdict


class ScoredCheck:
    """A scorer in the place of a checker: it is never sure, and gives its score."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.name = scorer.name

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return self._scorer.most_tokens(prompt_tokens, new_tokens)

    async def check(self, subject: Subject) -> Judgement:
        try:
            judgement = await self._scorer.score(subject)
        except EngineError as e:
            return Judgement(verdict="error", reason=str(e))
        if judgement.score is None:
            return replace(judgement, verdict="error")
        return replace(judgement, verdict="unsure")


class ChainedCheck:
    """A chain of checkers.

    Args:
        checkers: in the order in which they are asked; their names differ.
        mode: `fallback` asks until one is sure, `all` asks every one.

    Raises:
        ValueError: there is none, there are too many, or two have the same name.
    """

    name = "chain"

    def __init__(self, checkers: Sequence[Checker], mode: ChainMode) -> None:
        self._checkers = {checker.name: checker for checker in checkers}
        self._chain = Chain(tuple(checker.name for checker in checkers), mode)

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return sum(c.most_tokens(prompt_tokens, new_tokens) for c in self._checkers.values())

    async def check(self, subject: Subject) -> Judgement:
        verdicts: dict[str, Verdict] = {}
        spent: list[Judgement] = []
        while names := self._chain.pending(verdicts):
            subjects = [replace(subject, call_id=f"{subject.call_id}-{name}") for name in names]
            judged = await asyncio.gather(
                *(self._checkers[name].check(s) for name, s in zip(names, subjects, strict=True))
            )
            spent += judged
            verdicts |= {name: _verdict(j) for name, j in zip(names, judged, strict=True)}
        result = self._chain.judge(verdicts)
        return Judgement(
            score=result.verdict.score,
            verdict=result.verdict.kind,
            tokens=sum(j.tokens for j in spent),
            usage=_sum([j.usage for j in spent if j.usage is not None]),
            reason=result.verdict.reason,
            disagreement=result.disagreement,
        )


def _verdict(judgement: Judgement) -> Verdict:
    kind = judgement.verdict or "error"
    if kind == "unsure" and judgement.score is None:
        return Verdict("error", reason=judgement.reason or "no score")
    return Verdict(kind, judgement.score if kind == "unsure" else None, judgement.reason)


def _sum(usages: Sequence[Usage]) -> Usage | None:
    if not usages:
        return None
    return Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
    )
