"""`POST /v1/reason`: the native request and answer."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from orchestrator.outcome import Outcome
from orchestrator.request import Effort, Message, ReasonRequest, SamplingWish
from services.api.encoding import scrubbed
from services.api.fields import (
    MinP,
    ModelName,
    Penalty,
    Positive,
    RepetitionPenalty,
    Seed,
    StopString,
    Strict,
    Technique,
    Temperature,
    TopK,
    TopP,
)
from services.api.messages import Messages, Query, core_messages
from services.api.receipt_schema import PonderaAnswer
from services.api.verifier_schema import VerifierMode, Verifiers, wishes


class SamplingOptions(Strict):
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    stop: Annotated[list[StopString], Field(max_length=4)] = Field(default_factory=list)
    json_schema: dict[str, Any] | None = None
    regex: Annotated[str, Field(min_length=1, max_length=1024)] | None = None


class ReasonBody(Strict):
    """One query: `query` (a user message) or `messages`; an effort, or a technique with its parameters."""

    model: ModelName
    query: Query | None = None
    messages: Messages | None = None
    effort: Effort | None = None
    technique: Technique | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    verifiers: Verifiers = Field(default_factory=list)
    verifier_mode: VerifierMode = "fallback"
    sampling: SamplingOptions = SamplingOptions()
    max_new_tokens: Positive | None = None
    max_total_tokens: Positive | None = None
    deadline_ms: Positive | None = None
    seed: Seed | None = None
    include_log: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.query is None) == (self.messages is None):
            raise ValueError("give exactly one of 'query' and 'messages'")
        if self.technique is not None and self.effort is not None:
            raise ValueError("give an effort or a technique, not both")
        if self.sampling.json_schema is not None and self.sampling.regex is not None:
            raise ValueError("give 'sampling.json_schema' or 'sampling.regex', not both")
        return self

    def core(self) -> ReasonRequest:
        s = self.sampling
        messages = core_messages(self.messages) if self.messages else (Message("user", self.query or ""),)
        return ReasonRequest(
            model=self.model,
            messages=messages,
            effort=self.effort or "auto",
            technique=self.technique,
            params=self.params,
            sampling=SamplingWish(
                temperature=s.temperature,
                top_p=s.top_p,
                top_k=s.top_k,
                min_p=s.min_p,
                frequency_penalty=s.frequency_penalty,
                presence_penalty=s.presence_penalty,
                repetition_penalty=s.repetition_penalty,
                stop=tuple(s.stop),
                json_schema=json.dumps(s.json_schema) if s.json_schema is not None else None,
                regex=s.regex,
            ),
            max_new_tokens=self.max_new_tokens,
            max_total_tokens=self.max_total_tokens,
            deadline_ms=self.deadline_ms,
            seed=self.seed,
            verifiers=wishes(self.verifiers),
            verifier_mode=self.verifier_mode,
            keep_log=self.include_log,
        )


class ReasonAnswer(PonderaAnswer):
    """`text` is the whole chosen branch, `answer` its final answer, `log` the event log (JSON lines)."""

    id: str
    object: str = "reason"
    text: str
    log: str | None = None

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> ReasonAnswer:
        base = PonderaAnswer.of(outcome)
        return cls(
            id=outcome.receipt.search_id,
            text=scrubbed(outcome.text),
            answer=base.answer,
            status=base.status,
            receipt=base.receipt,
            log=scrubbed(outcome.log),
        )


class ModelView(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "pondera"
