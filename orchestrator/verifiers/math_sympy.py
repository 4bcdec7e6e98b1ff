"""What an answer's parts are in sympy: expressions, read by `math-verify`, and sets of real numbers."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
from math_verify import (  # type: ignore[import-untyped]
    LatexExtractionConfig,
    LatexNormalizationConfig,
    parse,
)

from orchestrator.verifiers.math_formula import Formula
from orchestrator.verifiers.math_reading import Items, Named, NumberSet, Relation, SetExpression, Value
from orchestrator.verifiers.math_tokens import Unreadable

# The text that is parsed has one meaning already: nothing in it is to be mended or dropped.
_AS_WRITTEN = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=LatexNormalizationConfig(
        basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
    ),
)
_NUMBER_SETS = {"N": "Naturals", "Z": "Integers", "Q": "Rationals", "R": "Reals", "C": "Complexes"}


def expression(formula: Formula) -> Any:
    """The evaluated sympy expression of a formula.

    Raises:
        Unreadable: it is not read, or has no value, as has 1/0.
    """
    if formula.number is not None:
        return sympy.Rational(formula.number.numerator, formula.number.denominator)
    found = parse(
        f"${formula.latex}$",
        extraction_config=[_AS_WRITTEN],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )
    if len(found) != 1 or not isinstance(found[0], sympy.Expr):
        raise Unreadable("is not a formula that can be read")
    raw = found[0]
    exact: dict[Any, Any] = {f: sympy.Rational(str(f)) for f in raw.atoms(sympy.Float)}
    exact |= {s: _symbol(s.name) for s in raw.atoms(sympy.Symbol)}
    value = raw.xreplace(exact).doit()
    if not isinstance(value, sympy.Expr) or value.has(sympy.nan, sympy.zoo):
        raise Unreadable("has no value")
    return value


def _symbol(name: str) -> Any:
    return {"i": sympy.I, "e": sympy.E}.get(name) or sympy.Symbol(name, real=True)


def set_of(value: Value) -> Any:
    """The set of numbers that a value stands for.

    Raises:
        Unreadable: it stands for none.
    """
    if isinstance(value, NumberSet):
        return getattr(sympy.S, _NUMBER_SETS[value.letter])
    if isinstance(value, Named):
        return set_of(value.value)
    if isinstance(value, Formula):
        return sympy.FiniteSet(expression(value))
    if isinstance(value, SetExpression):
        join = {r"\cup": sympy.Union, r"\cap": sympy.Intersection, r"\setminus": sympy.Complement}
        parts = [set_of(part) for part in value.parts]
        if value.operator == r"\setminus" and len(parts) > 2:
            raise Unreadable("takes away from a set more than once")
        return join[value.operator](*parts)
    if isinstance(value, Items) and all(isinstance(item, Formula) for item in value.items):
        ends = [expression(item) for item in value.items if isinstance(item, Formula)]
        if value.kind in ("set", "list"):
            return sympy.FiniteSet(*ends)
        if value.kind == "tuple" and len(ends) == 2:
            return sympy.Interval(*ends, value.brackets[0] == "(", value.brackets[1] == ")")
    if isinstance(value, Relation) and "=" not in value.signs:
        sides = [expression(side) for side in value.sides]
        if len(set().union(*(side.free_symbols for side in sides))) == 1:
            signs = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "!=": sympy.Ne}
            pairs = zip(value.signs, sides, sides[1:], strict=False)
            return sympy.And(*(signs[sign](left, right) for sign, left, right in pairs)).as_set()
    raise Unreadable("is not a set of numbers")
