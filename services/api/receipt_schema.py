"""The receipt as clients see it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel

from orchestrator.outcome import Outcome
from services.api.encoding import scrubbed


class Tokens(BaseModel):
    """Tokens by phase. charged = prompt + generated + verifier. `after_stop` is part of `generated`."""

    charged: int
    prompt: int
    generated: int
    verifier: int
    after_stop: int
    prefill_fresh: int
    prefill_cached: int
    sibling_fresh: int
    sibling_cached: int


class BranchView(BaseModel):
    branch: int
    fate: str
    reason: str
    tokens: int
    answer: str | None
    score: float | None


class Calls(BaseModel):
    generate: int
    verifier: int
    failed: int


class ReceiptView(BaseModel):
    """What was tried, why, what it cost and how each branch ended.

    `disagreements`: checks whose verifiers differed. `late_calls`: calls that had not ended when the answer
    was due; what they still cost is charged but not in `tokens`.
    """

    search_id: str
    model: str
    technique: str
    params: dict[str, Any]
    why: str
    seed: int
    stop_reason: str
    tokens: Tokens
    cap: int
    fixed_n_tokens: int | None
    calls: Calls
    failures: list[str]
    disagreements: int
    late_calls: int
    fates: dict[str, int]
    branches: list[BranchView]
    support: float | None
    tie: bool
    elapsed_ms: int


class PonderaAnswer(BaseModel):
    """The extension object of every answer."""

    answer: str | None
    status: Literal["completed", "partial", "failed"]
    receipt: ReceiptView

    @classmethod
    def of(cls, outcome: Outcome) -> PonderaAnswer:
        r = outcome.receipt
        t = r.tokens
        tokens = Tokens(**{name: getattr(t, name) for name in Tokens.model_fields})
        return cls(
            answer=scrubbed(outcome.answer),
            status=outcome.status,
            receipt=ReceiptView(
                search_id=r.search_id,
                model=r.model,
                technique=r.technique,
                params=scrubbed(r.params),
                why=r.why,
                seed=r.seed,
                stop_reason=r.stop_reason,
                tokens=tokens,
                cap=r.cap,
                fixed_n_tokens=r.fixed_n_tokens,
                calls=Calls(generate=r.generate_calls, verifier=r.verifier_calls, failed=r.failed_calls),
                failures=scrubbed(r.failures),
                disagreements=r.disagreements,
                late_calls=r.late_calls,
                fates=r.fates,
                branches=[BranchView(**scrubbed(asdict(b))) for b in r.listed],
                support=r.support,
                tie=r.tie,
                elapsed_ms=r.elapsed_ms,
            ),
        )
