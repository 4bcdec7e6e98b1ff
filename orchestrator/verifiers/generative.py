"""Process reward by label tokens: the engine that wrote a path says how likely its steps are right."""

from __future__ import annotations

from engines.protocol import ScoreRequest
from orchestrator.scoring import ProcessReward
from orchestrator.verifiers.port import Judgement, Subject


class GenerativeReward:
    """A scorer over the generative process-reward form of the model itself."""

    name = "process_reward"

    def __init__(self, form: ProcessReward) -> None:
        self._form = form

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return self._form.tokens

    async def score(self, subject: Subject) -> Judgement:
        ids = self._form.input_ids(subject.path_ids, subject.prompt_tokens)
        scores = await subject.engine.score(
            ScoreRequest(
                subject.call_id,
                ids,
                (self._form.right_id, self._form.wrong_id),
                cache_salt=subject.cache_salt,
                trace=subject.trace,
            )
        )
        return Judgement(
            score=scores.probabilities[0],
            tokens=self._form.tokens,
            usage=scores.usage,
            engine_s=scores.engine_s,
        )
