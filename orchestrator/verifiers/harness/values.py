"""How values cross from one side to the other: plain data as a copy, anything else as a reference.

Plain data is what two copies of are as good as one: numbers, texts, the built-in containers, and some value
types of the standard library. A subclass of a built-in type counts as that type unless it has public names of
its own. The form is JSON: a value that JSON has no form for is a list that starts with a tag.
"""

from __future__ import annotations

import builtins
import collections
import importlib
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class References(Protocol):
        """Keeps the objects that are passed by reference."""

        def export(self, value: object) -> int:
            """The number under which the other side may speak of a value of this side."""

        def exported(self, number: int) -> object:
            """The value of this side with this number."""

        def remote(self, number: int) -> object:
            """The stand-in for a value of the other side."""

        def number_of(self, value: object) -> int | None:
            """The number of a stand-in; None for any other value."""

        def awaitable(self, number: int) -> object:
            """The stand-in for a coroutine of the other side."""


MAX_EXCEPTION_BASES = 32

_SMALL = 1 << 63
_SEQUENCES: dict[str, type] = {"l": list, "t": tuple, "s": set, "f": frozenset}
_TAGS = {kind: tag for tag, kind in _SEQUENCES.items()}
# Value types of the standard library and the arguments that make an equal one.
_VALUES: dict[tuple[str, str], Callable[[Any], tuple[object, ...]]] = {
    ("builtins", "range"): lambda v: (v.start, v.stop, v.step),
    ("builtins", "slice"): lambda v: (v.start, v.stop, v.step),
    ("fractions", "Fraction"): lambda v: (v.numerator, v.denominator),
    ("decimal", "Decimal"): lambda v: (str(v),),
    ("datetime", "date"): lambda v: (v.year, v.month, v.day),
    ("datetime", "datetime"): lambda v: (
        v.year,
        v.month,
        v.day,
        v.hour,
        v.minute,
        v.second,
        v.microsecond,
        v.tzinfo,
    ),
    ("datetime", "time"): lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    ("datetime", "timedelta"): lambda v: (v.days, v.seconds, v.microseconds),
    ("datetime", "timezone"): lambda v: (v.utcoffset(None),),
    ("collections", "deque"): lambda v: (list(v), v.maxlen),
    ("collections", "Counter"): lambda v: (dict(v),),
    ("collections", "OrderedDict"): lambda v: (list(v.items()),),
    ("uuid", "UUID"): lambda v: (str(v),),
}
# Built-ins that are the same on both sides, so that `key=len` or `isinstance(x, kind)` need no call across.
_SHARED = {
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex", "dict",
    "divmod", "enumerate", "filter", "float", "frozenset", "hash", "hex", "int", "iter", "len", "list", "map",
    "max", "min", "next", "object", "oct", "ord", "pow", "range", "repr", "reversed", "round", "set", "slice",
    "sorted", "str", "sum", "tuple", "type", "zip",
}  # fmt: skip


class BrokenProtocol(Exception):
    """What came from the other side cannot be understood."""


class Codec:
    """Turns values into their form on the wire, and back.

    Args:
        references: this side's.
    """

    def __init__(self, references: References) -> None:
        self._references = references
        self._exceptions: dict[int, type[Exception]] = {}

    def encode(self, value: Any) -> Any:
        """The form of any value. RecursionError: it is nested too deeply, or holds itself."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -_SMALL < value < _SMALL else ["i", hex(value)]
        if kind in _TAGS:
            return [_TAGS[kind], [self.encode(item) for item in value]]
        if kind is dict:
            return ["d", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        if kind in (bytes, bytearray):
            return ["b" if kind is bytes else "B", value.decode("latin-1")]
        if kind is complex:
            return ["c", value.real, value.imag]
        number = self._references.number_of(value)
        if number is not None:
            return ["o", number]
        name = (kind.__module__, kind.__qualname__)
        if name in _VALUES:
            return ["x", *name, [self.encode(item) for item in _VALUES[name](value)]]
        return self._encode_object(value, kind)

    def _encode_object(self, value: Any, kind: type) -> Any:
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and name in _SHARED and getattr(builtins, name) is value:
            return ["u", name]
        if isinstance(value, types.ModuleType) and _in_standard_library(value.__name__):
            return ["m", value.__name__]
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._encode_exception(value)
        if isinstance(value, types.CoroutineType):
            return ["a", self._references.export(value)]
        base = next(
            (base for base in (int, float, str, tuple, list, dict, set, frozenset) if issubclass(kind, base)),
            None,
        )
        if base is tuple and isinstance(getattr(value, "_fields", None), tuple):
            return ["n", kind.__name__, list(value._fields), [self.encode(item) for item in value]]
        if base in (int, float, str) or (base is not None and not _has_names(kind, base)):
            return self.encode(base(value))
        return ["r", self._references.export(value)]

    def _encode_exception(self, kind: type) -> Any:
        if (
            _in_standard_library(kind.__module__)
            and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
        ):
            return ["E", kind.__module__, kind.__name__]
        bases = [base for base in kind.__bases__ if issubclass(base, BaseException)]
        return [
            "e",
            self._references.export(kind),
            kind.__name__,
            [self._encode_exception(base) for base in bases],
        ]

    def decode(self, form: Any) -> Any:
        """The value of a form.

        Raises:
            BrokenProtocol: it is none that `encode` makes.
        """
        try:
            return self._decode(form)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as exc:
            raise BrokenProtocol(f"{type(exc).__name__}: {exc}") from None

    def _decode(self, form: Any) -> Any:
        if not isinstance(form, list):
            if isinstance(form, dict):
                raise BrokenProtocol("a bare object")
            return form
        match form:
            case [("l" | "t" | "s" | "f") as tag, list(items)]:
                return _SEQUENCES[tag](self._decode(item) for item in items)
            case ["d", list(items)]:
                return {self._decode(key): self._decode(item) for key, item in items}
            case ["i", str(digits)]:
                return int(digits, 16)
            case ["b", str(text)]:
                return text.encode("latin-1")
            case ["B", str(text)]:
                return bytearray(text, "latin-1")
            case ["c", float(real), float(imaginary)]:
                return complex(real, imaginary)
            case ["o", int(number)]:
                return self._references.exported(number)
            case ["r", int(number)]:
                return self._references.remote(number)
            case ["a", int(number)]:
                return self._references.awaitable(number)
            case ["x", str(module), str(name), list(items)] if (module, name) in _VALUES:
                made = getattr(importlib.import_module(module), name)
                return made(*(self._decode(item) for item in items))
            case ["n", str(name), list(fields), list(items)]:
                return collections.namedtuple(name, fields)(*(self._decode(item) for item in items))
            case ["u", str(name)] if name in _SHARED:
                return getattr(builtins, name)
            case ["m", str(name)] if _in_standard_library(name):
                return importlib.import_module(name)
            case [("E" | "e"), *_]:
                return self._decode_exception(form)
        raise BrokenProtocol("an unknown tag")

    def _decode_exception(self, form: Any) -> type[Exception]:
        match form:
            case ["E", str(module), str(name)] if _in_standard_library(module):
                kind = getattr(importlib.import_module(module), name, None)
                if isinstance(kind, type) and issubclass(kind, Exception):
                    return kind
                # SystemExit and its like would end the other side itself.
                return Exited
            case ["e", int(number), str(name), list(bases)] if 0 < len(bases) <= MAX_EXCEPTION_BASES:
                if number not in self._exceptions:
                    parents = tuple(dict.fromkeys(self._decode_exception(base) for base in bases))
                    self._exceptions[number] = type(name, parents, {})
                return self._exceptions[number]
        raise BrokenProtocol("an unknown exception")


class Exited(Exception):
    """The other side wanted to exit."""


def _in_standard_library(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _has_names(kind: type, base: type) -> bool:
    """Whether a subclass has public names that its built-in base has not."""
    own = (
        name
        for part in kind.__mro__
        if part is not base and not issubclass(base, part)
        for name in vars(part)
    )
    return kind.__module__ != "collections" and any(not name.startswith("_") for name in own)
