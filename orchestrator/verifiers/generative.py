"""Process reward read off label tokens: the engine that wrote a path says how likely its steps are right."""

from __future__ import annotations

from dataclasses import dataclass

from engines.protocol import ScoreRequest
from orchestrator.verifiers.port import Judgement, Subject
from orchestrator.verifiers.prefix import judged_prefix


@dataclass(frozen=True, slots=True)
class ProcessReward:
    """The generative process-reward form of a model, in its own token ids.

    The path so far, without trailing `strip_ids`, is followed by `suffix_ids`; the score is the probability
    of `right_id` against `wrong_id` as the next token.
    """

    suffix_ids: tuple[int, ...]
    right_id: int
    wrong_id: int
    strip_ids: frozenset[int]

    @property
    def tokens(self) -> int:
        """Charged tokens of one score: the suffix and the one label token that is decoded."""
        return len(self.suffix_ids) + 1

    def input_ids(self, path_ids: tuple[int, ...], prompt_tokens: int) -> tuple[int, ...]:
        """Token ids to score; the prompt itself is never stripped."""
        return judged_prefix(path_ids, prompt_tokens, self.strip_ids, self.suffix_ids)


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
