"""What was spent on an answer, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from orchestrator.meter import TokenCount
from orchestrator.plan import Plan
from search.contract import Branch, Candidate, Search

Status: TypeAlias = Literal["completed", "partial", "failed"]

MAX_BRANCHES = 256
"""Branches listed one by one; the rest are counted by fate."""


@dataclass(frozen=True, slots=True)
class BranchLine:
    """One branch: what became of it and why."""

    branch: int
    fate: str
    reason: str
    tokens: int
    answer: str | None
    score: float | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The account of one query.

    Args:
        why: why this technique and these parameters.
        stop_reason: what ended the search.
        fixed_n_tokens: estimate of what drawing all `n` samples would have been charged, from the mean
            length of the samples that ended; None where the technique has no `n` or none ended.
        cap: the hard limit that held, in charged tokens.
        disagreements: checks whose verifiers differed.
        late_calls: calls whose ends had not been seen when the answer was due; their last tokens are counted
            and settled all the same, but are not in this account.
        fates: branches by fate, all of them.
        listed: the first branches, at most `MAX_BRANCHES`.
        support: share of the vote or score mass behind the answer.
    """

    search_id: str
    model: str
    technique: str
    params: dict[str, Any]
    why: str
    seed: int
    status: Status
    stop_reason: str
    tokens: TokenCount
    cap: int
    fixed_n_tokens: int | None
    generate_calls: int
    verifier_calls: int
    failed_calls: int
    failures: tuple[str, ...]
    disagreements: int
    late_calls: int
    fates: dict[str, int]
    listed: tuple[BranchLine, ...]
    support: float | None
    tie: bool
    elapsed_ms: int


def fixed_n_tokens(plan: Plan, search: Search, ended: list[Branch]) -> int | None:
    """Charged tokens of all `n` samples at the mean length of those that ended by themselves."""
    n: int | None = getattr(plan.params, "n", None)
    if n is None or not ended:
        return None
    mean = sum(b.tokens for b in ended) / len(ended)
    return round(search.tree.prompt_tokens + n * (mean + plan.costs.score_tokens))


def settled(branches: Sequence[Branch], candidate: Candidate | None, stop_reason: str) -> list[Branch]:
    """The branches after the run: those it cut off are `stopped`, or `chosen` if the best so far."""
    out = []
    for b in branches:
        if b.fate == "running":
            chosen = candidate is not None and candidate.node in b.nodes
            fate = "chosen" if chosen else "stopped"
            b = replace(b, fate=fate, reason=f"cut off by {stop_reason}")
        out.append(b)
    return out


def lines(branches: list[Branch]) -> tuple[BranchLine, ...]:
    return tuple(
        BranchLine(i, b.fate, b.reason, b.tokens, b.answer, b.score)
        for i, b in enumerate(branches[:MAX_BRANCHES])
    )


def status_of(candidate: Candidate | None, *, cut: bool) -> Status:
    """`completed` only for a search that finished by itself with an answer the model ended by itself."""
    if candidate is None:
        return "failed"
    return "partial" if cut or not candidate.complete else "completed"
