"""A judge's prompt in token ids: fixed parts from the model's chat template, and quoted data between them.

Data from outside cannot speak as the template. Every line of it is quoted, so that it cannot end its section;
its tokens are made apart from those around it, and none of them is special.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engines.tokenizer import ChatTemplateError, SpecialTokenInContent

_MOST_ESCAPES = 64
_LONGEST_TOKEN = 128
"""Characters that a token has at most on average; a longer text is not even tokenised."""


class JudgeUnavailable(ValueError):
    """The model cannot be asked in this form."""


class Reason(StrEnum):
    """Why something was not judged."""

    NO_ANSWER = "no_answer"
    INCOMPLETE = "answer_incomplete"
    ANSWER_TOO_LONG = "answer_too_long"
    QUESTION_TOO_LONG = "question_too_long"
    SPECIAL_TOKEN = "special_token"  # noqa: S105
    UNREADABLE = "unreadable"


class NotJudged(Exception):
    """No score follows: neither a good one nor a bad one."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class JudgeTokenizer(Protocol):
    """What is needed of the judge model's tokenizer."""

    def encode_chat_parts(
        self, messages: Sequence[Mapping[str, Any]], holes: Sequence[str], **template_kwargs: Any
    ) -> tuple[tuple[int, ...], ...]: ...

    def encode_data(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def token_id(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What is judged. `complete`: the model ended it by itself."""

    text: str
    complete: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to be seen in it."""
        return not any(character.isprintable() and not character.isspace() for character in self.text)


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to the judge model, for `Engine.score`.

    Args:
        shared_tokens: the first ones, the same in all prompts about one question: charged once a search.
    """

    input_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    shared_tokens: int

    @property
    def own_tokens(self) -> int:
        """Charged tokens of this question alone: what is not shared, and the label that is decoded."""
        return len(self.input_ids) - self.shared_tokens + 1


@dataclass(frozen=True, slots=True)
class Settled:
    """A score (0..1) that needs no model."""

    score: float


class JudgePrompt:
    """The fixed parts of one form.

    Args:
        holes: names of the places for data, as the template has them.
        context_tokens: most tokens of a prompt.

    Raises:
        JudgeUnavailable: a label is not one token of this model, or its chat template cannot take the form.
    """

    def __init__(
        self,
        tokenizer: JudgeTokenizer,
        template: str,
        holes: Sequence[str],
        labels: Sequence[str],
        variables: Mapping[str, Any],
        context_tokens: int,
    ) -> None:
        messages = [{"role": "user", "content": template}]
        try:
            self._parts = tokenizer.encode_chat_parts(messages, holes, **variables)
        except ChatTemplateError as error:
            raise JudgeUnavailable(f"the judge's template does not fit the model's: {error}") from error
        self.label_ids = tuple(_label_id(tokenizer, label) for label in labels)
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens

    def fixed_tokens(self, first: int, last: int) -> int:
        """Tokens of the fixed parts number `first` to `last`, inclusive."""
        return sum(len(part) for part in self._parts[first : last + 1])

    @property
    def fixed_parts(self) -> tuple[tuple[int, ...], ...]:
        return self._parts

    def open(self, question: str, most: int) -> tuple[int, ...]:
        """Token ids of all that comes before the first answer.

        Raises:
            NotJudged: the question has more than `most` tokens, leaves no room for an answer, or has special
                tokens of the judge model.
        """
        before, between, *rest = self._parts
        ids = before + self.quote(question, most, Reason.QUESTION_TOO_LONG) + between
        if len(ids) + sum(map(len, rest)) >= self._context_tokens:
            raise NotJudged(Reason.QUESTION_TOO_LONG, "the question leaves no room for an answer")
        return ids

    def quote(self, text: str, most: int, too_long: Reason) -> tuple[int, ...]:
        """Token ids of a text as a quotation.

        Raises:
            NotJudged: it has more than `most` tokens (`too_long`), or a special token that stays one.
        """
        if len(text) > most * _LONGEST_TOKEN:
            raise NotJudged(too_long, f"a text has {len(text)} characters; at most {most} tokens are judged")
        quotation = "\n".join(f"> {line}" for line in text.strip().splitlines())
        ids = self._encode(quotation)
        if len(ids) > most:
            raise NotJudged(too_long, f"a text has {len(ids)} tokens; at most {most} are judged")
        return ids

    def ask(self, shared: tuple[int, ...], own: tuple[int, ...]) -> Ask:
        """The whole prompt.

        Raises:
            NotJudged: it is longer than the context.
        """
        ids = shared + own
        if len(ids) > self._context_tokens:
            message = f"the prompt has {len(ids)} tokens; the judge takes {self._context_tokens}"
            raise NotJudged(Reason.ANSWER_TOO_LONG, message)
        return Ask(ids, self.label_ids, len(shared))

    def _encode(self, text: str) -> tuple[int, ...]:
        """A special token that is spelled out in the text is pulled apart by a space."""
        for _ in range(_MOST_ESCAPES):
            try:
                return self._tokenizer.encode_data(text)
            except SpecialTokenInContent as error:
                token = error.token
                apart = text.replace(token, f"{token[:1]} {token[1:]}") if len(token) > 1 else text
                if apart == text:
                    break
                text = apart
        raise NotJudged(Reason.SPECIAL_TOKEN, "a text has special tokens of the judge model")


def check_probabilities(probabilities: Sequence[float], labels: int) -> None:
    """Refuse what no label probabilities can be.

    Raises:
        NotJudged: their number is wrong, or one is not in 0..1.
    """
    if len(probabilities) != labels or not all(0.0 <= p <= 1.0 + 1e-6 for p in probabilities):
        raise NotJudged(Reason.UNREADABLE, f"the judge gave no probability for each of {labels} labels")
    if not math.isclose(math.fsum(probabilities), 1.0, abs_tol=1e-3):
        raise NotJudged(Reason.UNREADABLE, "the judge's label probabilities do not add up to 1")


def _label_id(tokenizer: JudgeTokenizer, label: str) -> int:
    try:
        number = tokenizer.token_id(label)
    except ValueError as error:
        raise JudgeUnavailable(f"labels: {error}") from error
    if tokenizer.decode((number,)) != label:
        raise JudgeUnavailable(f"labels: {label!r} is not in the model's vocabulary")
    return number
