r"""When two answers are the same answer: a normal form by which answers are grouped.

Numbers are compared exactly, as rational numbers. Anything else is compared by a conservative normal
form of its text. Texts are never grouped because they look alike.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 2000
"""Longer answers are compared as plain text."""
MAX_DIGITS = 400
"""Numbers with more digits, or a larger decimal exponent, are compared as text."""

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"), "-")
_THIN_SPACES = dict.fromkeys(map(ord, "\u2009\u202f\u200a\u200b\u2060\ufeff"), "")
_CHARACTERS = _DASHES | _THIN_SPACES

_SPACING = re.compile(r"\\[,;:! ]|\\(?:left|right|displaystyle|q?quad|big[lr]?|Big[lr]?)(?![A-Za-z])|\{,\}")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_FRAC = re.compile(r"\\[dtc]?frac(?![A-Za-z])")
_OPERATOR_SPACE = re.compile(r" ?([-+*/=^()<>\[\]{}|]) ?")
_COMMA_SPACE = re.compile(r" ?, ?")
_COMMAND_OR_TEXT = re.compile(r"\\[A-Za-z]*|[^\\]+")
_PAIRS = (
    ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("*", "*"), ("__", "__"),
    ("`", "`"), ('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"),
)  # fmt: skip

_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SCIENTIFIC = re.compile(
    rf"([-+]?)({_DECIMAL})(?:[eE]([-+]?[0-9]{{1,6}})|(?: ?\\times ?| ?\\cdot ?|\*| ?\u00d7 ?)10\^"
    r"(?:\{([-+]?[0-9]{1,6})\}|([0-9]{1,6})))?"
)
_RATIO = re.compile(rf"([-+]?)({_DECIMAL})/([-+]?)({_DECIMAL})")
_LATEX_RATIO = re.compile(r"([-+]?)([0-9]*)\\frac ?(?:\{([^{}]+)\}|([0-9])) ?(?:\{([^{}]+)\}|([0-9]))")
_MIXED = re.compile(r"([-+]?)([0-9]+)\s+([0-9]+)/([0-9]+)")
_CHOICE = re.compile(r"\(([A-Za-z0-9])\)")


def answer_key(answer: str) -> str:
    r"""The normal form of an answer: equal keys mean the same answer.

    A number becomes its exact value in lowest terms (`0.5`, `1/2`, `\frac{1}{2}` all give `1/2`;
    `1,000` and `1e3` give `1000`), whatever dash is its minus sign and whatever LaTeX or Markdown stands
    around it. Other text is case-folded, its white space collapsed, and punctuation around it dropped.

    Returns:
        The key; empty when nothing is left of the answer. `answer_key(answer_key(x)) == answer_key(x)`.
    """
    text = " ".join(answer.translate(_CHARACTERS).split())
    if len(text) > MAX_LENGTH:
        return text.casefold()
    previous = None
    while text != previous:
        previous = text
        text = _unwrapped(_without_latex(text))
        number = _number(text)
        if number is not None:
            return number
        text = _OPERATOR_SPACE.sub(r"\1", _folded(text)).strip()
    # Only now: a comma without a space may stand in a number, and one with a space may not.
    return _COMMA_SPACE.sub(", ", text)


def is_number(key: str) -> bool:
    """Whether a key is that of a plain number, so that only its equal is the same answer."""
    return _number(key) is not None


def _without_latex(text: str) -> str:
    text = _SPACING.sub(lambda m: "," if m.group() == "{,}" else "", text)
    text = _TEXT_COMMAND.sub(r"\1", text)
    text = _FRAC.sub(r"\\frac", text)
    return text.replace(r"\$", "").replace(r"\%", "%").replace("~", " ").strip()


def _unwrapped(text: str) -> str:
    """Take off one layer of what stands around an answer."""
    for left, right in _PAIRS:
        if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
            inner = text[len(left) : -len(right)]
            if left not in inner and right not in inner:
                return inner.strip()
    if text.startswith("{") and text.endswith("}") and text.find("}") == len(text) - 1:
        return text[1:-1].strip()
    if choice := _CHOICE.fullmatch(text):
        return choice.group(1)
    # A lone dollar is a currency sign. An ellipsis is a statement of its own: `0.33...` is not `0.33`.
    text = text.strip("$ ").strip(",;:? ")
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return text


def _number(text: str) -> str | None:
    percent = text.endswith("%")
    value = _rational(text[:-1].rstrip() if percent else text)
    return None if value is None else f"{value}%" if percent else str(value)


def _rational(text: str) -> Fraction | None:
    if not text or sum(map(str.isdigit, text)) > MAX_DIGITS:
        return None
    if m := _MIXED.fullmatch(text):
        return _signed(m[1], _plus(Fraction(int(m[2])), _over(Fraction(int(m[3])), Fraction(int(m[4])))))
    compact = _OPERATOR_SPACE.sub(r"\1", text)
    if m := _SCIENTIFIC.fullmatch(compact):
        exponent = int(m[3] or m[4] or m[5] or "0")
        if abs(exponent) > MAX_DIGITS:
            return None
        return _signed(m[1], _decimal(m[2]) * Fraction(10) ** exponent)
    if m := _RATIO.fullmatch(compact):
        return _signed(m[1], _over(_decimal(m[2]), _signed(m[3], _decimal(m[4]))))
    if m := _LATEX_RATIO.fullmatch(compact):
        above, below = (_plain(m[3] or m[4]), _plain(m[5] or m[6]))
        if above is None or below is None:
            return None
        ratio = _over(above, below)
        return _signed(m[1], ratio if not m[2] else _plus(Fraction(int(m[2])), ratio))
    return None


def _plain(text: str) -> Fraction | None:
    m = _SCIENTIFIC.fullmatch(text.strip())
    return None if m is None or m[3] or m[4] or m[5] else _signed(m[1], _decimal(m[2]))


def _decimal(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


def _over(above: Fraction, below: Fraction | None) -> Fraction | None:
    return above / below if below else None


def _plus(a: Fraction, b: Fraction | None) -> Fraction | None:
    return None if b is None else a + b


def _signed(sign: str, value: Fraction | None) -> Fraction | None:
    return -value if sign == "-" and value is not None else value


def _folded(text: str) -> str:
    # LaTeX commands keep their case: `\\Delta` is not `\\delta`.
    return _COMMAND_OR_TEXT.sub(lambda m: m[0] if m[0].startswith("\\") else m[0].casefold(), text)
