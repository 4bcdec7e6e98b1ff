"""What a text that the model ended by itself comes to: an answer, calls of tools, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from search.equivalence import answer_key
from search.extract import final_answer, visible_text
from search.json_key import json_key
from search.sample import SampleLimits
from search.tool_calls import tool_calls, tool_calls_key


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a complete text comes to.

    Args:
        has_text: it is not blank.
        visible: it has text outside thinking.
        answer: the final answer as the model wrote it; None if there is none.
        key: the normal form of the answer, by which answers are grouped.
        calls_tools: the answer is calls of tools.
    """

    has_text: bool
    visible: bool
    answer: str | None = None
    key: str | None = None
    calls_tools: bool = False


def read_outcome(text: str, limits: SampleLimits) -> Outcome:
    """Read a complete text."""
    seen = visible_text(text, limits.thinking)
    has_text, visible = bool(text.strip()), bool(seen.strip())
    if limits.tool_calls is not None and (calls := tool_calls(seen, limits.tool_calls)):
        return Outcome(has_text, visible, seen.strip(), tool_calls_key(calls), calls_tools=True)
    if limits.json_answer:
        key = json_key(seen.strip())
        return Outcome(has_text, visible, None if key is None else seen.strip(), key)
    answer = final_answer(text, limits.thinking)
    key = None if answer is None else answer_key(answer)
    return Outcome(has_text, visible, answer, key) if key else Outcome(has_text, visible)
