r"""Splits the normal form of a mathematical answer into tokens; what is not mathematics is refused.

Model output that a lenient reader would accept is full of traps: `cat` and `act` are one product of letters,
`1011_2` loses its base, `12 m` its unit. Readers of mathematics here are strict instead: what has more
than one meaning is not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd lcm")
SYMBOLS = _words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi "
    "chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega pi infty"
)
RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\lt": "<", r"\gt": ">", r"\le": "<=", r"\leq": "<=", r"\leqslant": "<=",
    r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", r"\ne": "!=", r"\neq": "!=", r"\in": "in",
}  # fmt: skip
SET_OPERATORS = frozenset((r"\cup", r"\cap", r"\setminus"))
PLUS_MINUS = r"\pm"
OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil",
           r"\begin": r"\end"}  # fmt: skip
CLOSING = frozenset(OPENING.values())

_OTHER = _words(r"\frac \binom \sqrt \cdot \times \div \emptyset \varnothing \mathbb \circ \degree \{ \} \\")
_ALSO_UNITS = _words("min sec")
_UNITS = _words(
    "nm mm cm dm km in ft yd mi ml cl dl mg kg lb lbs oz ms sec min hr hrs hz khz mhz ghz kj mj kw mw kwh "
    "mol pa kpa mph kmh rpm kb mb gb usd eur rs"
)
_PLAIN = {"sqrt": r"\sqrt", "inf": r"\infty", "infinity": r"\infty"}
_COMMANDS = (
    frozenset("\\" + name for name in FUNCTIONS | SYMBOLS)
    | RELATIONS.keys()
    | SET_OPERATORS
    | OPENING.keys()
    | CLOSING
    | _OTHER
    | {PLUS_MINUS}
)
_TOKEN = re.compile(
    r" *(?:(?P<end>$)|(?P<matrix>\\(?:begin|end)\{[bp]matrix\})|(?P<command>\\[A-Za-z]+|\\[{}\\])"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<word>[A-Za-z]+)|(?P<sign><=|>=|!=|\*\*|[-+*/^=<>()\[\]{}|,;!_&%]))"
)
_SIGNS = {"<=": r"\le", ">=": r"\ge", "**": "^", "*": r"\cdot", r"\times": r"\cdot", r"\div": "/"}
_MOST_NESTED = 24
_LONGEST_PRODUCT = 3


class Unreadable(ValueError):
    """A text that is not read as mathematics; says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its text (see this module's tables), and how deep in brackets it stands."""

    text: str
    depth: int = 0

    @property
    def is_number(self) -> bool:
        return self.text[0].isdigit()

    @property
    def is_symbol(self) -> bool:
        """A letter, or a letter's name such as `\\alpha`, `\\pi` or `\\infty`."""
        return (len(self.text) == 1 and self.text.isalpha()) or self.text[1:] in SYMBOLS


def tokens_of(text: str) -> tuple[list[Token], str]:
    """The tokens of a text, and the words that follow them: the unit, or nothing.

    Args:
        text: the normal form of an answer, without surroundings such as `$` or `\\boxed`.

    Raises:
        Unreadable: it has a character, a command or a word that is not read, or is nested too deeply.
    """
    found: list[Token] = []
    at = depth = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable("has a character that is not read as mathematics")
        if match["end"] is not None:
            return found, ""
        start, at = match.start(match.lastgroup or 0), match.end()
        if match["word"] or match["sign"] == "%" or _DEGREE.match(text, start):
            if match["word"] in _UNITS and found and _UNIT.fullmatch(text, start):
                return found, _unit(text[start:], found, depth)
            if (letters := _letters(match["word"] or "", text, called=text.startswith("(", at))) is None:
                return found, _unit(text[start:], found, depth)
        else:
            letters = [_spelled(match)]
        for letter in letters:
            depth -= letter in CLOSING
            found.append(Token(letter, depth))
            depth += letter in OPENING
            if depth > _MOST_NESTED:
                raise Unreadable("is nested too deeply")


def split(tokens: Sequence[Token], at: Sequence[str] | frozenset[str]) -> list[list[Token]]:
    """Split at tokens that stand outside all brackets among them."""
    level = tokens[0].depth if tokens else 0
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.depth == level and token.text in at:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _spelled(match: re.Match[str]) -> str:
    if match["matrix"]:
        return r"\begin" if match["matrix"].startswith(r"\begin") else r"\end"
    text = match[match.lastgroup or 0]
    text = _SIGNS.get(text, text)
    if text == "!=":
        raise Unreadable("has `!=`, which is an unequal sign or a factorial")
    if match["number"]:
        if text[0] == "0" and text[:2] not in ("0", "0."):
            raise Unreadable("has a number with a leading zero")
        return "0" + text if text[0] == "." else text
    if text[0] == "\\" and text not in _COMMANDS:
        raise Unreadable("has a command that is not read")
    return text


def _letters(word: str, text: str, *, called: bool) -> list[str] | None:
    """The tokens that a run of letters stands for; None if it is a word. `called`: a bracket follows."""
    if word in _PLAIN:
        return [_PLAIN[word]]
    if len(word) > 1 and (word in FUNCTIONS or word in SYMBOLS) and (called or word not in _ALSO_UNITS):
        return ["\\" + word]
    if len(word) == 1:
        return [word]
    # `2xy` is a product. Alone, `no` and `on` are words; `dx` is a differential.
    distinct = len(set(word)) == len(word) <= _LONGEST_PRODUCT and "d" not in word
    if word and distinct and re.search(r"[-\d+*/^=<>\\]", text):
        return list(word)
    return None


_DEGREE = re.compile(r"\^? ?\{? ?\\(?:circ|degree)(?![A-Za-z]) ?\}? ?")
_UNIT = re.compile(r"%|\u00b0[a-z]?|[a-z]+(?:[ /.]+[a-z]+)*(?:\^\{?[23]\}?)?(?:/[a-z]+)?")
_SAME_UNITS = {"degree": "\u00b0", "degrees": "\u00b0", "deg": "\u00b0", "percent": "%"}


def _unit(text: str, before: list[Token], depth: int) -> str:
    text = _DEGREE.sub("\u00b0", text).strip()
    value = any(t.is_number or t.text.startswith("\\") for t in before)
    if not value or depth or not _UNIT.fullmatch(text):
        raise Unreadable("has words that are not read as mathematics")
    return _SAME_UNITS.get(text, text.replace(" ", ""))
