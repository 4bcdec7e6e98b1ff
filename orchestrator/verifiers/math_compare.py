"""Whether two answers are mathematically the same: yes, no, or not decided. Exact; nothing is rounded.

`math-verify` reads the formulas and `sympy` decides. math-verify's own comparison is not asked. It is made
to grade an answer against a reference, so it differs by direction; it rounds decimals (1/3 is 0.333333),
takes 9% for 9, and takes an exception for a no.

Variables are real numbers, `i` is the imaginary unit. `x = 5` and `5` are the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]

from orchestrator.verifiers.math_formula import Formula
from orchestrator.verifiers.math_reading import (
    Answer,
    Items,
    Named,
    NumberSet,
    Relation,
    SetExpression,
    Value,
)
from orchestrator.verifiers.math_sympy import expression, set_of
from orchestrator.verifiers.math_tokens import Unreadable

_NO_PROOF = "neither a proof nor a counterexample was found"
_MIRRORED = {">": "<", ">=": "<="}


class Comparison:
    """Compares two answers.

    Args:
        any_order: two lists without brackets are the same in any order. Otherwise that is undecided, since
            only the question tells whether the order counts.
    """

    def __init__(self, *, any_order: bool) -> None:
        self._any_order = any_order
        self.why = ""
        """Why it was not decided."""

    def same(self, a: Answer, b: Answer) -> bool | None:
        """True, False, or None when it cannot be decided.

        Raises:
            Unreadable: a formula is not read, or has no value.
            Exception: whatever sympy raises on a formula that is too large for it.
        """
        if a.unit == b.unit:
            return self._values(a.value, b.value)
        if a.unit and b.unit:
            return self._undecided("they have different units, which are not converted")
        bare = b.value if a.unit else a.value
        if isinstance(bare, Formula) and expression(bare).free_symbols:
            return self._undecided("they may have different units, which are not converted")
        return False

    def _values(self, a: Value, b: Value) -> bool | None:
        if isinstance(a, Named) and isinstance(b, Named):
            return self._values(a.value, b.value) if a.name == b.name else self._equations(a, b)
        if isinstance(a, Named | Relation) and isinstance(b, Named | Relation):
            return self._relations(a, b)
        if isinstance(a, Named):
            return self._values(a.value, b)
        if isinstance(b, Named):
            return self._values(a, b.value)
        if isinstance(a, Formula) and isinstance(b, Formula):
            return self._formulas(a, b)
        if any(isinstance(v, SetExpression | NumberSet | Relation) for v in (a, b)):
            return self._sets(a, b)
        return self._items(a, b)

    def _formulas(self, a: Formula, b: Formula) -> bool | None:
        if a.number is not None and b.number is not None:
            return a.number == b.number
        return self._expressions(expression(a), expression(b))

    def _expressions(self, x: Any, y: Any) -> bool | None:
        if x == y:
            return True
        infinite = (sympy.oo, -sympy.oo)
        if x in infinite or y in infinite:
            return False
        if x.has(sympy.oo) or y.has(sympy.oo):
            return self._undecided("they calculate with infinity")
        difference = x - y
        equal = difference.equals(0)
        if not equal and difference.free_symbols:
            positive = {s: sympy.Symbol(s.name, positive=True) for s in difference.free_symbols}
            if difference.subs(positive).equals(0):
                return self._undecided("they are equal for some signs of the variables only")
        return self._undecided(_NO_PROOF) if equal is None else bool(equal)

    def _items(self, a: Value, b: Value) -> bool | None:
        if not isinstance(a, Items) or not isinstance(b, Items):
            single, items = (a, b) if isinstance(b, Items) else (b, a)
            assert isinstance(items, Items)
            if not items.items or _all(self._values(single, item) for item in items.items) is False:
                return False
            return self._undecided("one is in brackets and the other is not")
        kinds = {a.kind, b.kind}
        if kinds in ({"matrix"}, {"names"}) or (kinds == {"tuple"} and a.brackets == b.brackets):
            return self._in_order(a.items, b.items)
        if kinds == {"set"}:
            return self._in_any_order(a.items, b.items)
        if kinds <= {"set", "list"}:
            if self._in_order(a.items, b.items):
                return True
            same = self._in_any_order(a.items, b.items)
            if same and kinds == {"list"} and not self._any_order:
                return self._undecided("they list the same in another order, without brackets")
            return same
        if kinds == {"tuple"} and {a.brackets, b.brackets} != {"()", "[]"}:
            return False
        if self._in_order(_flat(a), _flat(b)) is False:
            return False
        return self._undecided("they differ in their brackets or names only")

    def _in_order(self, a: Sequence[Value], b: Sequence[Value]) -> bool | None:
        return len(a) == len(b) and _all(self._values(x, y) for x, y in zip(a, b, strict=True))

    def _in_any_order(self, a: Sequence[Value], b: Sequence[Value]) -> bool | None:
        """Whether each of one has its equal among the other, and the other way round."""
        table = [[self._values(x, y) for y in b] for x in a]
        rows = [
            *table,
            *([list(column) for column in zip(*table, strict=True)] if table else [[] for _ in b]),
        ]
        return _all(_any(row) for row in rows)

    def _relations(self, a: Named | Relation, b: Named | Relation) -> bool | None:
        if _is_equation(a) and _is_equation(b):
            return self._equations(a, b)
        if _variables(a) != _variables(b):
            return False
        if not isinstance(a, Relation) or not isinstance(b, Relation):
            return self._sets(a, b)
        x, y = a, b
        if len(x.signs) == len(y.signs) == 1:
            (x_sign, x_side), (y_sign, y_side) = _one_sided(x), _one_sided(y)
            if x_sign == y_sign:
                ratio = sympy.cancel(x_side / y_side)
                if ratio.is_positive or (x_sign == "!=" and ratio.is_number and ratio.is_nonzero):
                    return True
        return self._sets(a, b)

    def _equations(self, a: Named | Relation, b: Named | Relation) -> bool | None:
        """One has to be the other times a number, or to have the same solutions."""
        try:
            x, y = _one_sided(_relation(a))[1], _one_sided(_relation(b))[1]
        except Unreadable:
            return False if isinstance(a, Named) and isinstance(b, Named) else self._undecided("not compared")
        ratio = sympy.cancel(x / y) if y != 0 else sympy.nan
        if ratio.is_number and ratio.is_finite and ratio.is_nonzero:
            return True
        for one, other in ((x, y), (y, x)):
            for symbol in sorted(one.free_symbols, key=str):
                for solution in sympy.solve(one, symbol, dict=False):
                    if other.subs(symbol, solution).equals(0) is False:
                        return False
        symbols = x.free_symbols | y.free_symbols
        if len(symbols) == 1:
            roots = [sympy.solveset(side, *symbols) for side in (x, y)]
            if all(isinstance(found, sympy.FiniteSet) for found in roots):
                return bool(roots[0] == roots[1])
        return self._undecided(_NO_PROOF)

    def _sets(self, a: Value, b: Value) -> bool | None:
        try:
            x, y = set_of(a), set_of(b)
        except Unreadable:
            return self._undecided("they are sets given in different ways")
        if x == y:
            return True
        empty = sympy.SymmetricDifference(x, y).is_empty
        return self._undecided("the sets were not compared") if empty is None else bool(empty)

    def _undecided(self, why: str) -> bool | None:
        self.why = why
        return None


def _all(parts: Iterable[bool | None]) -> bool | None:
    """Conjunction in which None is neither."""
    found = list(parts)
    return False if False in found else None if None in found else True


def _any(parts: Iterable[bool | None]) -> bool | None:
    found = list(parts)
    return True if True in found else None if None in found else False


def _flat(items: Items) -> list[Value]:
    flat: list[Value] = []
    for item in items.items:
        flat.extend(_flat(item) if isinstance(item, Items) else [item])
    return flat


def _variables(value: Named | Relation) -> set[str]:
    if isinstance(value, Named):
        return {value.name}
    return {s.name for side in value.sides for s in expression(side).free_symbols}


def _is_equation(value: Named | Relation) -> bool:
    return isinstance(value, Named) or value.signs == ("=",)


def _relation(value: Named | Relation) -> Relation:
    if isinstance(value, Relation):
        return value
    if not isinstance(value.value, Formula) or "(" in value.name:
        raise Unreadable("is not an equation of formulas")
    return Relation((Formula(value.name), value.value), ("=",))


def _one_sided(relation: Relation) -> tuple[str, Any]:
    """A relation as `expression sign 0`, with `<` or `<=` for `>` and `>=`."""
    left, right = map(expression, relation.sides)
    sign = relation.signs[0]
    return (_MIRRORED[sign], right - left) if sign in _MIRRORED else (sign, left - right)
