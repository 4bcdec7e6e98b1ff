"""Checks of an answer's text alone: the very text, a pattern, a JSON schema.

The pattern is the client's and may take exponential time, so it is matched in a thread, with a time limit, by
a matcher that lets other threads run.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import regex

from orchestrator.verifiers.port import Judgement, Subject
from search.equivalence import answer_key
from search.extract import ThinkingMarkers, final_answer, visible_text

PATTERN_LIMIT_S = 0.5
MOST_TEXT = 200_000
"""Characters of the longest text that is checked."""


class CheckRefused(ValueError):
    """A check cannot be made as it was put; the message says why.

    Args:
        field: the parameter at fault.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class ExactCheck:
    """Whether the final answer is the expected one, by their normal forms.

    Raises:
        CheckRefused: nothing is left of the expected answer in its normal form.
    """

    name = "exact"

    def __init__(self, expected: str, thinking: ThinkingMarkers | None) -> None:
        self._key = answer_key(expected)
        self._thinking = thinking
        if not self._key:
            raise CheckRefused("the expected answer is empty", "expected")

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return 0

    async def check(self, subject: Subject) -> Judgement:
        answer = final_answer(subject.text, self._thinking)
        right = answer is not None and answer_key(answer) == self._key
        return Judgement(verdict="right" if right else "wrong")


class RegexCheck:
    """Whether the final answer, or the whole visible text where it has none, matches a pattern in full.

    Raises:
        CheckRefused: the pattern is none.
    """

    name = "regex"

    def __init__(self, pattern: str, thinking: ThinkingMarkers | None) -> None:
        self._thinking = thinking
        try:
            self._pattern = regex.compile(pattern)
        except regex.error as e:
            raise CheckRefused(f"not a pattern: {e}", "pattern") from None

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return 0

    async def check(self, subject: Subject) -> Judgement:
        text = final_answer(subject.text, self._thinking)
        if text is None:
            text = visible_text(subject.text, self._thinking).strip()
        if len(text) > MOST_TEXT:
            return Judgement(verdict="error", reason=f"the text is longer than {MOST_TEXT} characters")
        try:
            matches = await asyncio.to_thread(self._matches, text)
        except TimeoutError:
            return Judgement(verdict="error", reason=f"the pattern took more than {PATTERN_LIMIT_S} s")
        return Judgement(verdict="right" if matches else "wrong")

    def _matches(self, text: str) -> bool:
        return self._pattern.fullmatch(text, timeout=PATTERN_LIMIT_S, concurrent=True) is not None


class SchemaCheck:
    """Whether the visible text is one JSON value of a schema (JSON Schema, draft 2020-12).

    Raises:
        CheckRefused: the schema is none, has references, or has patterns (whose time nobody bounds).
    """

    name = "json_schema"

    def __init__(self, schema: str, thinking: ThinkingMarkers | None) -> None:
        self._thinking = thinking
        try:
            value: Any = json.loads(schema)
            jsonschema.Draft202012Validator.check_schema(value)
        except (ValueError, RecursionError, jsonschema.SchemaError) as e:
            reason = e.message if isinstance(e, jsonschema.SchemaError) else "it is not JSON"
            raise CheckRefused(f"not a JSON schema: {reason}", "schema") from None
        for word in ("pattern", "patternProperties", "$ref", "$dynamicRef"):
            if _uses(value, word):
                raise CheckRefused(f"a schema that uses {word!r} is not supported in a check", "schema")
        self._validator = jsonschema.Draft202012Validator(value)

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return 0

    async def check(self, subject: Subject) -> Judgement:
        text = visible_text(subject.text, self._thinking).strip()
        if len(text) > MOST_TEXT:
            return Judgement(verdict="error", reason=f"the text is longer than {MOST_TEXT} characters")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return Judgement(verdict="wrong", reason="not JSON")
        valid = await asyncio.to_thread(self._validator.is_valid, value)
        return Judgement(verdict="right" if valid else "wrong")


def _uses(value: Any, word: str) -> bool:
    if isinstance(value, dict):
        return word in value or any(_uses(v, word) for v in value.values())
    return isinstance(value, list) and any(_uses(v, word) for v in value)
