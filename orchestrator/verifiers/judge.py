"""An LLM as a judge of single answers: the expectation over grade tokens.

The model is not let write: the probabilities of the grades as the first token of its reply are read, and
averaged. What all prompts about one question share comes first, so that only the answer itself is new to the
engine's prefix cache.

Paper: Liu et al., "G-Eval", EMNLP 2023 (arXiv 2303.16634), for the expectation over score tokens in place of
the likeliest one. Zheng et al., "Judging LLM-as-a-Judge", NeurIPS 2023 (arXiv 2306.05685), for its biases.

Known limits: grades of one model are not calibrated, and not comparable across questions; probability that
the model puts on other tokens than the labels is not seen. Quoting keeps an answer from speaking as the
template; it cannot keep it from being persuasive.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.verifiers.judge_form import JudgeForm
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


class PointwiseJudge:
    """One form on one model.

    Args:
        context_tokens: most tokens of a prompt to the judge.

    Raises:
        JudgeUnavailable: the model cannot be asked in this form.
    """

    def __init__(self, tokenizer: JudgeTokenizer, form: JudgeForm, context_tokens: int) -> None:
        labels = [label for label, _ in form.labels]
        holes = ("{question}", "{answer}")
        self._prompt = JudgePrompt(
            tokenizer, form.template, holes, labels, form.chat_variables, context_tokens
        )
        self._values = [value for _, value in form.labels]
        self._form = form

    @property
    def most_shared_tokens(self) -> int:
        """Charged tokens of one question at most, once a search."""
        return self._prompt.fixed_tokens(0, 1) + self._form.max_question_tokens

    @property
    def most_own_tokens(self) -> int:
        """Charged tokens of one answer at most."""
        return self._form.max_answer_tokens + self._prompt.fixed_tokens(2, 2) + 1

    def open(self, question: str) -> PointwiseCase:
        """All judgements of answers to one question.

        Raises:
            NotJudged: the question is too long, or has special tokens of the judge model.
        """
        shared = self._prompt.open(question, self._form.max_question_tokens)
        return PointwiseCase(self._prompt, shared, self._form.max_answer_tokens)

    def read(self, probabilities: Sequence[float]) -> float:
        """The score (0..1) that the grades' probabilities stand for: its expectation.

        Raises:
            NotJudged: they are no probabilities of the grades.
        """
        check_probabilities(probabilities, len(self._values))
        score = sum(p * value for p, value in zip(probabilities, self._values, strict=True))
        return min(1.0, score / sum(probabilities))


class PointwiseCase:
    """One question, put to a `PointwiseJudge`."""

    def __init__(self, prompt: JudgePrompt, shared: tuple[int, ...], max_answer_tokens: int) -> None:
        self._prompt = prompt
        self._shared = shared
        self._max_answer_tokens = max_answer_tokens

    @property
    def shared_tokens(self) -> int:
        """Charged tokens of the question and all before the answer, once a search."""
        return len(self._shared)

    def ask(self, answer: Answer) -> Ask | Settled:
        """What to ask the model of an answer. An empty one has the score 0 unasked.

        Raises:
            NotJudged: the answer was cut short, is too long, or has special tokens of the judge model.
        """
        if answer.empty:
            return Settled(0.0)
        if not answer.complete:
            raise NotJudged(Reason.INCOMPLETE, "the answer was cut short")
        quoted = self._prompt.quote(answer.text, self._max_answer_tokens, Reason.ANSWER_TOO_LONG)
        after = self._prompt.fixed_parts[2]
        return self._prompt.ask(self._shared, quoted + after)
