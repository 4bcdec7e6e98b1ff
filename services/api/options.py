"""The `pondera` object of an OpenAI-shaped request."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrator.request import Effort
from services.api.fields import MinP, Positive, RepetitionPenalty, Strict, Technique, TopK
from services.api.verifier_schema import VerifierMode, Verifiers


class PonderaOptions(Strict):
    """What the OpenAI schema has no field for."""

    effort: Effort | None = None
    technique: Technique | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    verifiers: Verifiers = Field(default_factory=list)
    verifier_mode: VerifierMode = "fallback"
    max_total_tokens: Positive | None = None
    deadline_ms: Positive | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
