"""An LLM as a judge of two answers: which is better.

Both orders are asked, and averaged: a judge that prefers whatever comes first has no say. See
`orchestrator.verifiers.judge` for what is read of the model, and its limits.

Paper: Zheng et al., "Judging LLM-as-a-Judge", NeurIPS 2023 (arXiv 2306.05685), for the position bias and the
swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.verifiers.judge_form import PairForm
from orchestrator.verifiers.judge_prompt import (
    Answer,
    Ask,
    JudgePrompt,
    JudgeTokenizer,
    NotJudged,
    Reason,
    Settled,
    check_probabilities,
)


@dataclass(frozen=True, slots=True)
class SwappedAsks:
    """The two questions of one comparison. Without an answer to both there is no result.

    Args:
        forward: with the first answer as A.
        backward: with the second answer as A.
    """

    forward: Ask
    backward: Ask

    @property
    def own_tokens(self) -> int:
        """Charged tokens of this comparison alone."""
        return self.forward.own_tokens + self.backward.own_tokens


class PairwiseJudge:
    """One form on one model. Arguments and errors as `PointwiseJudge`."""

    def __init__(self, tokenizer: JudgeTokenizer, form: PairForm, context_tokens: int) -> None:
        holes = ("{question}", "{first}", "{second}")
        self._prompt = JudgePrompt(
            tokenizer, form.template, holes, form.labels, form.chat_variables, context_tokens
        )
        self._form = form

    @property
    def most_shared_tokens(self) -> int:
        """Charged tokens of one question at most, once a search."""
        return self._prompt.fixed_tokens(0, 1) + self._form.max_question_tokens

    @property
    def most_own_tokens(self) -> int:
        """Charged tokens of one comparison at most, both orders together."""
        return 2 * (2 * self._form.max_answer_tokens + self._prompt.fixed_tokens(2, 3) + 1)

    def open(self, question: str) -> PairwiseCase:
        """All comparisons of answers to one question.

        Raises:
            NotJudged: the question is too long, or has special tokens of the judge model.
        """
        shared = self._prompt.open(question, self._form.max_question_tokens)
        return PairwiseCase(self._prompt, shared, self._form.max_answer_tokens)

    def read(self, forward: Sequence[float], backward: Sequence[float]) -> float:
        """The probability (0..1) that the first answer is better, by the label probabilities of both orders.

        Raises:
            NotJudged: they are no probabilities of the two labels.
        """
        for probabilities in (forward, backward):
            check_probabilities(probabilities, 2)
        return min(1.0, (forward[0] + backward[1]) / 2)


class PairwiseCase:
    """One question, put to a `PairwiseJudge`."""

    def __init__(self, prompt: JudgePrompt, shared: tuple[int, ...], max_answer_tokens: int) -> None:
        self._prompt = prompt
        self._shared = shared
        self._max_answer_tokens = max_answer_tokens

    @property
    def shared_tokens(self) -> int:
        """Charged tokens of the question and all before the answers, once a search."""
        return len(self._shared)

    def ask(self, first: Answer, second: Answer) -> SwappedAsks | Settled:
        """What to ask the model of two answers.

        Unasked, an empty answer loses against one that is not, and equal texts draw (0.5).

        Raises:
            NotJudged: both are empty; or one was cut short, is too long, or has special tokens of the judge
                model.
        """
        if first.empty and second.empty:
            raise NotJudged(Reason.NO_ANSWER, "both answers are empty")
        if first.empty or second.empty:
            return Settled(0.0 if first.empty else 1.0)
        if not (first.complete and second.complete):
            raise NotJudged(Reason.INCOMPLETE, "an answer was cut short")
        a, b = (
            self._prompt.quote(answer.text, self._max_answer_tokens, Reason.ANSWER_TOO_LONG)
            for answer in (first, second)
        )
        if a == b:
            return Settled(0.5)
        return SwappedAsks(self._one(a, b), self._one(b, a))

    def _one(self, a: tuple[int, ...], b: tuple[int, ...]) -> Ask:
        _, _, between, after = self._prompt.fixed_parts
        return self._prompt.ask(self._shared, a + between + b + after)
