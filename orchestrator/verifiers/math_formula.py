r"""Writes one formula as LaTeX that can be read in one way only: every product has its sign, every argument
its braces. A formula that has more than one meaning is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from orchestrator.verifiers.math_tokens import FUNCTIONS, OPENING, Token, Unreadable, split
from search.equivalence import answer_key, is_number

_ARGUMENT_LISTS = frozenset((r"\max", r"\min", r"\gcd", r"\lcm"))
_COMMAND_FUNCTIONS = frozenset("\\" + name for name in FUNCTIONS)
_MAY_BE_CALLED = frozenset("fgh")


@dataclass(frozen=True, slots=True)
class Formula:
    """One formula without relation signs: unambiguous LaTeX, and its value when it is a plain number."""

    latex: str
    number: Fraction | None = None


def formula(tokens: Sequence[Token]) -> Formula:
    """Write tokens as one formula.

    Raises:
        Unreadable: they are no formula, or an ambiguous one.
    """
    reader = _Reader(tokens)
    latex = reader.sum()
    if reader.more:
        raise Unreadable("has a sign that is not read there")
    key = answer_key(latex)
    number = Fraction(key) if is_number(key) and not key.endswith("%") else None
    return Formula(latex, number)


class _Reader:
    """A recursive descent over a formula's tokens; each method reads one part of it and returns its LaTeX.

    sum = [sign] product {sign product};  product = factor {(* | / | nothing) factor};
    factor = atom [!] [^ exponent]
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = list(tokens)
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._tokens)

    def sum(self) -> str:
        out = self._sign() + self._product()
        while self._peek() in ("+", "-"):
            out += self._take() + self._product()
        return out

    def _product(self) -> str:
        out = self._factor()
        divided = False
        while self.more:
            before = self._tokens[self._at - 1]
            if self._peek() in ("/", r"\cdot"):
                divided = self._peek() == "/"
                operator = "/" if self._take() == "/" else r"\cdot "
                sign = self._sign()
                factor = self._factor()
                out += operator + (f"({sign}{factor})" if sign else factor)
            elif self._starts_factor():
                if divided:
                    raise Unreadable("has a product after a slash, which may or may not be divided by")
                self._refuse_joined(before)
                out += r"\cdot " + self._factor()
            else:
                break
        return out

    def _refuse_joined(self, before: Token) -> None:
        """Refuse factors side by side that are more than one product."""
        now = self._tokens[self._at]
        if now.is_number:
            raise Unreadable("has a number right after another factor")
        if before.is_number and now.text == r"\frac" and self._is_number_ratio():
            raise Unreadable("has a mixed number within a formula")
        if before.text in _MAY_BE_CALLED and now.text == "(":
            raise Unreadable("has what may be a function or a product")

    def _is_number_ratio(self) -> bool:
        above = self._tokens[self._at + 1 : self._at + 4]
        return len(above) > 1 and (above[0].is_number or (above[0].text == "{" and above[1].is_number))

    def _factor(self) -> str:
        start = self._at
        out = self._atom()
        if self._peek() == "!":
            self._take()
            if self._peek() in ("!", "^"):
                raise Unreadable("has a double factorial or a power of a factorial")
            return out + "!"
        if self._peek() == "^":
            self._take()
            compound = self._tokens[start].text in (r"\frac", r"\binom", r"\sqrt")
            out = f"({out})" if compound else out
            out += "^{" + self._exponent() + "}"
            if self._peek() in ("^", "!", "_"):
                raise Unreadable("has a power of a power without brackets")
        return out

    def _exponent(self) -> str:
        sign = self._sign()
        if self._peek() == "{" and not sign:
            return self._group("{")
        token = self._token()
        if token.is_number:
            return sign + self._take()
        return sign + self._atom()

    def _atom(self) -> str:
        token = self._token()
        text = token.text
        if text in ("(", "["):
            return "(" + self._group(text) + ")"
        if text == "{":
            return "(" + self._group("{") + ")"
        if text == "|":
            return self._absolute()
        if text in (r"\lfloor", r"\lceil"):
            return text + " " + self._group(text) + OPENING[text] + " "
        if text in (r"\frac", r"\binom"):
            self._take()
            return text + "{" + self._argument(digit=True) + "}{" + self._argument(digit=True) + "}"
        if text == r"\sqrt":
            return self._root()
        if text in _ARGUMENT_LISTS:
            return self._argument_list()
        if text in _COMMAND_FUNCTIONS:
            return self._function()
        if token.is_number:
            return self._take()
        if token.is_symbol:
            return self._symbol()
        raise Unreadable("has a sign that is not read there")

    def _symbol(self) -> str:
        name = self._take()
        subscript = ""
        if self._peek() == "_":
            self._take()
            subscript = "_" + self._subscript()
        if subscript or name[1:2].isupper():
            # The parser takes all letters for small ones, but of Greek ones both are in use; and is slow with
            # subscripts.
            return r"\mathrm{" + name.removeprefix("\\") + subscript + "}"
        return name + " " if name.startswith("\\") else name

    def _subscript(self) -> str:
        if self._peek() != "{":
            token = self._token()
            if not (token.is_number or (len(token.text) == 1 and token.is_symbol)):
                raise Unreadable("has a subscript that is not read")
            return self._take()
        inner = [t.text for t in self._inside("{")]
        if not inner or not all(text.isalnum() and text.isascii() for text in inner):
            raise Unreadable("has a subscript that is not read")
        return "".join(inner)

    def _root(self) -> str:
        self._take()
        index = ""
        if self._peek() == "[":
            index = "[" + self._group("[") + "]"
        return r"\sqrt" + index + "{" + self._argument() + "}"

    def _argument(self, *, digit: bool = False) -> str:
        """The argument of a LaTeX command: a group, or one character.

        `\\frac12` is a half, as TeX takes it (`digit`). Who writes `\\sqrt12` may mean the root of 12.
        """
        if self._peek() in ("{", "("):
            return self._group(self._peek())
        token = self._token()
        if token.is_number:
            if digit and len(token.text) > 1 and token.text.isdigit():
                self._tokens[self._at] = replace(token, text=token.text[1:])
                return token.text[0]
            if len(token.text) > 1:
                raise Unreadable("has an argument of several digits without braces")
            return self._take()
        if token.is_symbol:
            return self._symbol()
        raise Unreadable("has an argument without braces")

    def _argument_list(self) -> str:
        name = self._take()
        if self._peek() != "(":
            raise Unreadable("has a function without its arguments")
        return name + "(" + ",".join(formula(part).latex for part in split(self._inside("("), (",",))) + ")"

    def _function(self) -> str:
        out = self._take()
        if self._peek() == "_" and out == r"\log":
            self._take()
            out += "_{" + (self._group("{") if self._peek() == "{" else self._take()) + "}"
        if self._peek() == "^":
            self._take()
            out += "^{" + self._exponent() + "}"
        if self._peek() in ("(", "{", "["):
            out += "(" + self._group(self._peek()) + ")"
            if self._peek() == "^":
                raise Unreadable("has a power after a function")
            return out
        if self._peek() == "|":
            return out + "(" + self._absolute() + ")"
        argument = self._factor()
        while self.more and self._starts_factor() and self._peek() not in _COMMAND_FUNCTIONS | {"(", "|"}:
            self._refuse_joined(self._tokens[self._at - 1])
            argument += r"\cdot " + self._factor()
        if self._peek() in ("/", "!", "(", r"\cdot"):
            raise Unreadable("has a function whose argument may or may not end there")
        return out + "(" + argument + ")"

    def _absolute(self) -> str:
        self._take()
        inside = split(self._tokens[self._at :], ("|",))[0]
        self._at += len(inside)
        if self._peek() != "|":
            raise Unreadable("has a bar that is not closed")
        self._take()
        return "|" + formula(inside).latex + "|"

    def _group(self, opening: str) -> str:
        return formula(self._inside(opening)).latex

    def _inside(self, opening: str) -> Sequence[Token]:
        """Take a bracketed group; returns what is in it."""
        depth = self._tokens[self._at].depth
        self._take()
        start = self._at
        while self.more and self._tokens[self._at].depth > depth:
            self._at += 1
        if self._peek() != OPENING[opening]:
            raise Unreadable("has brackets that do not match")
        inside = self._tokens[start : self._at]
        self._take()
        return inside

    def _starts_factor(self) -> bool:
        token = self._tokens[self._at]
        return (
            token.is_number
            or token.is_symbol
            or token.text in ("(", "{", "|", r"\lfloor", r"\lceil", r"\frac", r"\binom", r"\sqrt")
            or token.text in _COMMAND_FUNCTIONS
        )

    def _sign(self) -> str:
        sign = ""
        while self._peek() in ("+", "-"):
            sign = "-" if (self._take() == "-") != (sign == "-") else ""
        return sign

    def _peek(self) -> str:
        return self._tokens[self._at].text if self.more else ""

    def _token(self) -> Token:
        if not self.more:
            raise Unreadable("ends where something is missing")
        return self._tokens[self._at]

    def _take(self) -> str:
        text = self._token().text
        self._at += 1
        return text
