r"""Reads a final answer as mathematics: what kind of thing it is, and the formulas it is made of.

An answer is read from its normal form (`answer_key`), so that two answers that are grouped without being read
are also read as the same. What can be meant in two ways is refused, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from orchestrator.verifiers.math_formula import Formula, formula
from orchestrator.verifiers.math_tokens import (
    OPENING,
    PLUS_MINUS,
    RELATIONS,
    SET_OPERATORS,
    Token,
    Unreadable,
    split,
    tokens_of,
)
from search.equivalence import answer_key


@dataclass(frozen=True, slots=True)
class Items:
    """Several things.

    Args:
        kind: `tuple`: in order, within `brackets`, as are intervals; `set`: in braces, in any order;
            `list`: without brackets, so that only the question tells whether the order counts;
            `matrix`: rows as tuples; `names`: several names with a value each, by name.
        brackets: the pair around a tuple; empty for the others.
    """

    kind: Literal["tuple", "set", "list", "matrix", "names"]
    brackets: str
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """`name = value`, or `name \\in value` for a set; the name as LaTeX."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Relation:
    """Formulas with relation signs (`=`, `!=`, `<`, `<=`, `>`, `>=`) between them."""

    sides: tuple[Formula, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetExpression:
    """Sets joined by one operator: `\\cup`, `\\cap` or `\\setminus`."""

    operator: str
    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class NumberSet:
    """`\\mathbb{R}` and the like, by letter."""

    letter: str


Value: TypeAlias = Formula | Items | Named | Relation | SetExpression | NumberSet


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer says; `unit` is the words, percent or degree sign after it, or empty."""

    value: Value
    unit: str = ""


_SIGNS = {
    "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00f7": "/", "\u03c0": r"\pi ",
    "\u03b8": r"\theta ", "\u221e": r"\infty ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ",
    "\u00b1": r"\pm ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2205": r"\emptyset ", "\u2208": r"\in ",
    "\u211d": r"\mathbb{R}", "\u00b0": r"^\circ ", "\u00b2": "^{2}", "\u00b3": "^{3}",
}  # fmt: skip
_CHARACTERS = {ord(sign): latex for sign, latex in _SIGNS.items()}
_ROOT = re.compile(r"\u221a ?(\d{1,30}|[a-z])")
_REPEATING = re.compile(r"(?<![\d.,])(\d{0,30})\.(\d{0,30})\\(?:overline|bar|dot) ?\{(\d{1,30})\}(?!\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_BRACKET = re.compile(r"[(\[{]")
_NESTED = r"(?:[^{}]|\{[^{}]*\})*"
_SET = re.compile(rf"(?<![\\A-Za-z0-9_^}}])\{{({_NESTED},{_NESTED})(?<!\\)\}}")
_NUMBER_SET = re.compile(r"\\mathbb ?\{([nzqrc])\}")
_LETTERS = frozenset("NZQRC")
_MOST_ITEMS = 64


def read(answer: str) -> Answer:
    """Read an answer.

    Args:
        answer: as the model wrote it; its length is the caller's to bound.

    Raises:
        Unreadable: it is not mathematics, or can be meant in more than one way.
    """
    tokens, unit = tokens_of(_normal_text(answer))
    return Answer(_value(tokens), unit)


def _normal_text(answer: str) -> str:
    text = _ROOT.sub(r"\\sqrt{\1}", answer).translate(_CHARACTERS)
    text = _REPEATING.sub(_fraction, text)
    bracket = _BRACKET.search(text)
    bare = len(text) if bracket is None else bracket.start()
    # Within brackets `1,234` may be two things.
    text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text[:bare]) + text[bare:]
    # A normal form has no plain braces around it, and takes a backslash before a space for a space.
    text = _SET.sub(r"\\{\1\\}", text).replace("\\\\ ", "\\\\")
    return _NUMBER_SET.sub(lambda m: rf"\mathbb{{{m[1].upper()}}}", answer_key(text))


def _fraction(match: re.Match[str]) -> str:
    """A repeating decimal as a fraction in LaTeX."""
    whole, fixed, period = match.groups()
    below = 10 ** len(fixed) * (10 ** len(period) - 1)
    above = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{above}}}{{{below}}}"


def _value(tokens: Sequence[Token]) -> Value:
    if not tokens:
        raise Unreadable("ends where something is missing")
    if len(listed := split(tokens, (",", ";"))) > 1:
        return _list(listed)
    if len(sides := split(tokens, frozenset(RELATIONS))) > 1:
        return _relation(
            sides, [t.text for t in tokens if t.depth == tokens[0].depth and t.text in RELATIONS]
        )
    if len(parts := split(tokens, SET_OPERATORS)) > 1:
        operators = set(_at_top(tokens, SET_OPERATORS))
        if len(operators) > 1:
            raise Unreadable("has different set operators without brackets")
        return SetExpression(operators.pop(), tuple(_value(part) for part in parts))
    if (whole := _bracketed(tokens)) is not None:
        return whole
    if any(t.text == PLUS_MINUS for t in tokens):
        return _plus_minus(tokens)
    return formula(tokens)


def _at_top(tokens: Sequence[Token], texts: frozenset[str]) -> list[str]:
    return [t.text for t in tokens if t.depth == tokens[0].depth and t.text in texts]


def _list(parts: list[list[Token]]) -> Value:
    values = _items(parts)
    names = [v.name for v in values if isinstance(v, Named)]
    if names and (len(set(names)) == 1 or len(names) == 1) and isinstance(values[0], Named):
        # `x = 1, 2` and `x = 1, x = 2` give one name two values.
        values = tuple(v.value if isinstance(v, Named) else v for v in values)
        return Named(names[0], Items("list", "", _flat(values)))
    if len(names) == len(values) == len(set(names)):
        return Items("names", "", tuple(sorted(values, key=lambda v: v.name if isinstance(v, Named) else "")))
    if names:
        raise Unreadable("has a list of which only a part has names")
    return Items("list", "", _flat(values))


def _flat(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """`\\pm 1, \\pm 2` is a list of four."""
    flat: list[Value] = []
    for value in values:
        flat.extend(value.items if isinstance(value, Items) and value.kind == "list" else [value])
    return tuple(flat)


def _items(parts: list[list[Token]]) -> tuple[Value, ...]:
    if len(parts) > _MOST_ITEMS:
        raise Unreadable(f"lists more than {_MOST_ITEMS} things")
    return tuple(_value(part) for part in parts)


def _relation(sides: list[list[Token]], written: list[str]) -> Value:
    signs = tuple(RELATIONS[sign] for sign in written)
    if signs in (("=",), ("in",)):
        if (name := _name(sides[0])) is not None:
            return Named(name, _value(sides[1]))
        if signs == ("=",) and (name := _name(sides[1])) is not None:
            return Named(name, _value(sides[0]))
    if "in" in signs or (len(signs) > 1 and ("=" in signs or "!=" in signs)):
        raise Unreadable("has a chain of relations that is not read")
    return Relation(tuple(formula(side) for side in sides), signs)


def _name(tokens: Sequence[Token]) -> str | None:
    """`x`, `x_1` or `f(x)`; None for anything else."""
    text = "".join(t.text for t in tokens)
    if not tokens or not tokens[0].is_symbol or tokens[0].text in ("e", "i", r"\pi", r"\infty"):
        return None
    if re.fullmatch(r"[a-z]\([a-z]\)", text):
        return text
    single = len(tokens) == 1 or re.fullmatch(r"\\?[A-Za-z]+_(?:[a-z0-9]+|\{[a-z0-9]+\})", text)
    return formula(tokens).latex if single else None


def _bracketed(tokens: Sequence[Token]) -> Value | None:
    """What stands in one pair of brackets as a whole; None if this is no such thing."""
    first, last, inside = tokens[0], tokens[-1], tokens[1:-1]
    if (name := "".join(t.text for t in tokens)) in (r"\emptyset", r"\varnothing"):
        return Items("set", "", ())
    if name.startswith(r"\mathbb{") and len(tokens) == 4 and tokens[2].text in _LETTERS:
        return NumberSet(tokens[2].text)
    closes = [i for i, t in enumerate(tokens) if t.depth == first.depth and t.text in OPENING.values()]
    if first.text not in OPENING or not closes or closes[0] != len(tokens) - 1:
        return None
    if first.text == r"\begin" and last.text == r"\end":
        rows = [_items(split(row, ("&",))) for row in split(inside, ("\\\\",)) if row]
        return Items("matrix", "", tuple(Items("tuple", "", row) for row in rows))
    parts = split(inside, (",", ";"))
    if (first.text, last.text) == (r"\{", r"\}"):
        return Items("set", "", _items(parts) if inside else ())
    if first.text in "([" and last.text in ")]" and len(parts) > 1:
        return Items("tuple", first.text + last.text, _items(parts))
    if (first.text, last.text) in (("(", ")"), ("{", "}")) and len(parts) == 1:
        return _value(inside)
    return None


def _plus_minus(tokens: Sequence[Token]) -> Items:
    if sum(t.text == PLUS_MINUS for t in tokens) > 1:
        raise Unreadable("has more than one plus-minus sign")
    both = (
        formula([Token(sign, t.depth) if t.text == PLUS_MINUS else t for t in tokens]) for sign in ("+", "-")
    )
    return Items("list", "", tuple(both))
