"""Mathematics as the search and the verifiers ask for it."""

from __future__ import annotations

from orchestrator.verifiers.math_pool import MathPool
from orchestrator.verifiers.port import Checker, Judgement, Subject
from orchestrator.verifiers.text_checks import CheckRefused
from search.extract import ThinkingMarkers, final_answer


class Mathematics:
    """Equality of answers by a pool of processes."""

    def __init__(self, pool: MathPool) -> None:
        self._pool = pool

    async def same(self, answer: str, other: str) -> bool | None:
        verdict = await self._pool.equal(answer, other)
        return {"same": True, "different": False}.get(verdict.verdict)

    def checker(self, expected: str, thinking: ThinkingMarkers | None) -> Checker:
        """Whether a final answer is the expected one.

        Raises:
            CheckRefused: nothing is expected.
        """
        if not expected.strip():
            raise CheckRefused("the expected answer is empty", "expected")
        return _MathCheck(self._pool, expected, thinking)


class _MathCheck:
    name = "math"

    def __init__(self, pool: MathPool, expected: str, thinking: ThinkingMarkers | None) -> None:
        self._pool = pool
        self._expected = expected
        self._thinking = thinking

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return 0

    async def check(self, subject: Subject) -> Judgement:
        answer = final_answer(subject.text, self._thinking)
        if answer is None:
            return Judgement(verdict="wrong", reason="no final answer")
        verdict = await self._pool.grade(answer, self._expected)
        match verdict.verdict:
            case "same":
                return Judgement(verdict="right")
            case "different":
                return Judgement(verdict="wrong")
        return Judgement(verdict="error", reason=f"{verdict.verdict}: {verdict.reason}".rstrip(": "))
