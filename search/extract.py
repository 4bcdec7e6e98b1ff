"""Find the final answer in a model's text: the last one that stands outside its thinking."""

from __future__ import annotations

import re
from dataclasses import dataclass

SHORT_LINE = 32
"""A visible text of one line and at most this many characters is itself the answer."""


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """How a model marks its thinking.

    Args:
        open: the text that starts a thinking section.
        close: the text that ends it.
        starts_inside: the prompt template already opened the section, so that the output begins in it.

    Raises:
        ValueError: a marker is empty or both are the same.
    """

    open: str = "<think>"
    close: str = "</think>"
    starts_inside: bool = False

    def __post_init__(self) -> None:
        if not self.open or not self.close or self.open == self.close:
            raise ValueError("thinking markers `open` and `close` must be non-empty and differ")


# Every quantifier is bounded or runs over a class that the next token cannot match: linear time.
_BRACE = re.compile(r"\\boxed[ \t]{0,8}\{|\\.|[{}]", re.DOTALL)
_LABEL = re.compile(
    r"^[ \t>#*_-]{0,16}(?P<line>(?:the[ \t]{1,4})?(?:final[ \t]{1,4})?answer)[ \t*_]{0,8}:"
    r"|(?<![A-Za-z])(?P<said>the[ \t]{1,4}(?:final[ \t]{1,4})?answer[ \t]{1,4}is\b)",
    re.IGNORECASE | re.MULTILINE,
)
_HASHES = re.compile(r"^[ \t]{0,8}(?P<hash>####)[ \t]{1,8}(?P<value>[^\n]*)$", re.MULTILINE)
_NUMBER = re.compile(r"[-+\u2212$]{0,2}[0-9][0-9.,/]*%?")
_SENTENCE = re.compile(r"(\$[^$\n]+\$|[-+\u2212]?[0-9][0-9,/]*(?:\.[0-9]+)?)[.;]\s")
_MARKUP = " \t\r\n*_`"


def is_thinking(text: str, thinking: ThinkingMarkers) -> bool:
    """Whether the end of the text lies within a thinking section."""
    opened, closed = text.rfind(thinking.open), text.rfind(thinking.close)
    return opened > closed or (thinking.starts_inside and closed < 0)


def visible_text(text: str, thinking: ThinkingMarkers | None) -> str:
    """The text outside thinking; sections that thinking parts are joined by a line break.

    An unclosed section hides all that follows it. When the first marker of all is a closing one, what
    stands before it is thinking too: the template opened the section.
    """
    if thinking is None:
        return text
    opened, closed = text.find(thinking.open), text.find(thinking.close)
    inside = thinking.starts_inside or (closed >= 0 and not 0 <= opened < closed)
    parts: list[str] = []
    at = 0
    while True:
        end = text.find(thinking.close if inside else thinking.open, at)
        if not inside:
            # A second closing marker closes nothing; it is no part of the text either.
            parts.append((text[at:] if end < 0 else text[at:end]).replace(thinking.close, "\n"))
        if end < 0:
            return "\n".join(parts)
        at = end + len(thinking.close if inside else thinking.open)
        inside = not inside


def final_answer(text: str, thinking: ThinkingMarkers | None = None) -> str | None:
    r"""The last final answer outside thinking, as the model wrote it; None if there is none or it is empty.

    Recognised: `\boxed{…}` (nested braces), a line `Answer: …` or `Final answer: …` with or without
    Markdown around it, `the (final) answer is …` (both to the end of the line, or the next line when
    nothing follows the colon), GSM8K's `#### …`. Of several, the one that starts last counts. A text
    with none of these that is one short line (`SHORT_LINE`) is its own answer.

    Time is linear in the length of the text.
    """
    seen = visible_text(text, thinking)
    found = max(filter(None, (_last_boxed(seen), _last_label(seen), _last_hashes(seen))), default=None)
    if found is not None:
        return found[1] or None
    line = seen.strip()
    if len(line) <= SHORT_LINE and "\n" not in line:
        return _trimmed(line) or None
    return None


def _last_boxed(text: str) -> tuple[int, str] | None:
    # One pass with a stack: matching each box by its own scan would be quadratic in nested boxes.
    if "\\boxed" not in text:
        return None
    stack: list[tuple[int, int]] = []  # (start of the box or -1 for a plain brace, start of its content)
    best: tuple[int, int, int] | None = None
    for m in _BRACE.finditer(text):
        brace = m.group()
        if brace == "}":
            if stack:
                start, content = stack.pop()
                if start >= 0 and (best is None or start > best[0]):
                    best = (start, content, m.start())
        elif brace == "{":
            stack.append((-1, m.end()))
        elif brace.endswith("{") and brace != "\\{":
            stack.append((m.start(), m.end()))
    return None if best is None else (best[0], text[best[1] : best[2]].strip())


def _last_label(text: str) -> tuple[int, str] | None:
    last = None
    for m in _LABEL.finditer(text):
        last = m
    if last is None:
        return None
    start = last.start("line") if last.group("line") else last.start("said")
    value = _trimmed(_line_at(text, last.end()).lstrip(_MARKUP + ":"))
    if not value:
        # `**Answer:**` as a heading: the answer stands on the next line that has text.
        following = text[last.end() :].lstrip(_MARKUP + ":")
        value = _trimmed(_line_at(following, 0))
    sentence = _SENTENCE.match(value)
    return start, sentence.group(1) if sentence else value


def _last_hashes(text: str) -> tuple[int, str] | None:
    # `####` is also a Markdown heading: only a number, or the last line of all, is an answer.
    last = None
    end_of_text = len(text.rstrip())
    for m in _HASHES.finditer(text):
        value = _trimmed(m.group("value"))
        if _NUMBER.fullmatch(value) or m.end() >= end_of_text:
            last = (m.start("hash"), value)
    return last


def _line_at(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start:] if end < 0 else text[start:end]


def _trimmed(value: str) -> str:
    return value.strip(_MARKUP).rstrip(_MARKUP + ".")
