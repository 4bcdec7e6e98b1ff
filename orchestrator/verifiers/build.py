"""From what a client asks for to the verifiers of its query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.catalog import ServedModel
from orchestrator.request import VERIFIER_KINDS, ReasonRequest, RequestRefused, VerifierWish
from orchestrator.verifiers.chain import ChainedCheck, ScoredCheck
from orchestrator.verifiers.llm_judge import LlmJudge
from orchestrator.verifiers.port import Checker, Equator, Scorer, Verifiers
from orchestrator.verifiers.text_checks import CheckRefused, ExactCheck, RegexCheck, SchemaCheck
from search.extract import ThinkingMarkers


class MathTool(Equator, Protocol):
    """Mathematics, in processes of its own."""

    def checker(self, expected: str, thinking: ThinkingMarkers | None) -> Checker:
        """Whether a final answer is the expected one in mathematics."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What verifiers need beside engines. None where this server has it not.

    Args:
        math: compares answers.
        code: makes a checker that runs the code of an answer against tests.
    """

    math: MathTool | None = None
    code: Callable[[VerifierWish, ThinkingMarkers | None], Checker] | None = None


def build_verifiers(
    request: ReasonRequest,
    model: ServedModel,
    tools: Toolbox,
    *,
    allow_code: bool,
    prompt_tokens: int,
    new_tokens: int,
) -> Verifiers:
    """The verifiers of one query.

    Args:
        allow_code: whether the tenant may have code run.
        prompt_tokens: of the query.
        new_tokens: of one answer at most.

    Raises:
        RequestRefused: a verifier cannot be had as it was put; names the field.
    """
    scorer: Scorer | None = model.scorer
    judge = None if model.judge is None else model.judge.for_query(prompt_tokens, new_tokens)
    checkers: list[Checker] = []
    for number, wish in enumerate(request.verifiers):
        if wish.kind in ("process_reward", "judge"):
            scorer = _scorer(wish, number, model, judge)
            checkers.append(ScoredCheck(scorer))
        else:
            checkers.append(_checker(wish, number, model, tools, allow_code))
    names = [checker.name for checker in checkers]
    if len(set(names)) < len(names):
        raise RequestRefused(
            "each kind of verifier can be given once", field="verifiers", code="invalid_verifier"
        )
    if not checkers:
        checker: Checker | None = ScoredCheck(scorer) if scorer is not None else None
    else:
        checker = checkers[0] if len(checkers) == 1 else ChainedCheck(checkers, request.verifier_mode)
    return Verifiers(scorer, checker, judge, tools.math)


def _scorer(wish: VerifierWish, number: int, model: ServedModel, judge: LlmJudge | None) -> Scorer:
    scorer: Scorer | None = judge if wish.kind == "judge" else model.scorer
    if scorer is None:
        have = [kind for kind, s in (("process_reward", model.scorer), ("judge", judge)) if s is not None]
        raise RequestRefused(
            f"{model.name!r} has no {wish.kind}; it has: {', '.join(have) or 'none'}",
            field=f"verifiers.{number}.kind",
            code="no_verifier",
        )
    return scorer


def _checker(
    wish: VerifierWish, number: int, model: ServedModel, tools: Toolbox, allow_code: bool
) -> Checker:
    at = f"verifiers.{number}"
    try:
        match wish.kind:
            case "exact":
                return ExactCheck(_given(wish.expected, f"{at}.expected"), model.thinking)
            case "regex":
                return RegexCheck(_given(wish.pattern, f"{at}.pattern"), model.thinking)
            case "json_schema":
                return SchemaCheck(_given(wish.schema, f"{at}.schema"), model.thinking)
            case "math":
                if tools.math is None:
                    raise _missing(at, "math")
                return tools.math.checker(_given(wish.expected, f"{at}.expected"), model.thinking)
            case "code":
                if tools.code is None:
                    raise _missing(at, "code")
                if not allow_code:
                    raise RequestRefused(
                        "running code is off for this tenant; an operator can allow it",
                        field=f"{at}.kind",
                        code="code_not_allowed",
                    )
                return tools.code(wish, model.thinking)
    except CheckRefused as e:
        raise RequestRefused(str(e), field=f"{at}.{e.field}", code="invalid_verifier") from None
    raise RequestRefused(
        f"unknown verifier {wish.kind!r}; legal: {', '.join(VERIFIER_KINDS)}",
        field=f"{at}.kind",
        code="invalid_verifier",
    )


def _given(value: str | None, field: str) -> str:
    if not value:
        raise RequestRefused(f"{field} is required", field=field, code="invalid_verifier")
    return value


def _missing(at: str, kind: str) -> RequestRefused:
    return RequestRefused(
        f"this server cannot run the verifier {kind!r}", field=f"{at}.kind", code="no_verifier"
    )
