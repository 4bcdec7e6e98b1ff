"""Answers of all sides, read and judged by the same two functions, and the majority by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from search.equivalence import answer_key
from search.extract import final_answer


def key_of(text: str | None) -> str | None:
    """The normal form of a text's final answer; None where there is none."""
    answer = final_answer(text) if text else None
    return (answer_key(answer) or None) if answer is not None else None


def is_right(text: str | None, answer: int) -> bool:
    return key_of(text) == answer_key(str(answer))


def majority(texts: Sequence[str]) -> str | None:
    """The first text with the most frequent answer; of equal counts the answer that came first wins.

    Texts without an answer have no vote. None if no text has one.
    """
    keys = [key_of(text) for text in texts]
    votes = Counter(key for key in keys if key is not None)
    if not votes:
        return None
    winner = votes.most_common(1)[0][0]
    return texts[keys.index(winner)]
