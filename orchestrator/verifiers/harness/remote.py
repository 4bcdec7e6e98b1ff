"""Stand-ins for values that live on the other side."""

from __future__ import annotations

import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, Protocol, TypeVar

    T = TypeVar("T")

    class Caller(Protocol):
        """Sends requests to the other side."""

        strict: bool
        """Values that live on the other side are compared or combined with each other alone."""

        def request(self, operation: str, *args: Any, **kwargs: Any) -> Any:
            """What the other side's operation comes to."""


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_",
    "xor",
)  # fmt: skip
UNARY = ("neg", "pos", "invert", "abs", "index")


class Remote:
    """A value of the other side. What is done to it is done there.

    Where the caller is strict, it is never equal to plain data, and cannot be ordered or combined with it:
    its own code would be told what the plain data is and could answer what is wanted.
    """

    __slots__ = ("_Remote__caller", "_Remote__number")

    def __init__(self, caller: Caller, number: int) -> None:
        object.__setattr__(self, "_Remote__caller", caller)
        object.__setattr__(self, "_Remote__number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return request(self, "getattr", name)

    def __setattr__(self, name: str, value: object) -> None:
        request(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        request(self, "delattr", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return request(self, "call", *args, **kwargs)

    def __iter__(self) -> Any:
        return request(self, "iter")

    def __next__(self) -> Any:
        return request(self, "next")

    def __len__(self) -> int:
        return _plain(request(self, "len"), int)

    def __getitem__(self, key: object) -> Any:
        return request(self, "getitem", key)

    def __setitem__(self, key: object, value: object) -> None:
        request(self, "setitem", key, value)

    def __delitem__(self, key: object) -> None:
        request(self, "delitem", key)

    def __contains__(self, item: object) -> bool:
        if may_mix(self, item):
            return _plain(request(self, "contains", item), bool)
        return any(item is other or item == other for other in self)

    def __bool__(self) -> bool:
        return _plain(request(self, "bool"), bool)

    def __hash__(self) -> int:
        return _plain(request(self, "hash"), int)

    def __str__(self) -> str:
        return _plain(request(self, "str"), str)

    def __repr__(self) -> str:
        return _plain(request(self, "repr"), str)

    def __int__(self) -> int:
        return _plain(request(self, "int"), int)

    def __float__(self) -> float:
        return _plain(request(self, "float"), float)

    def __round__(self, *digits: int) -> Any:
        return request(self, "round", *digits)

    def __enter__(self) -> Any:
        return request(self, "enter")

    def __exit__(self, *_: object) -> Any:
        return request(self, "exit")

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and _plain(request(self, "isinstance", value), bool)

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and _plain(request(self, "issubclass", value), bool)

    def __mro_entries__(self, _: object) -> NoReturn:
        raise TypeError("the tests cannot make a subclass of a class of the answer")


def request(target: Remote, operation: str, *args: Any, **kwargs: Any) -> Any:
    """Have `operation` done to a value of the other side."""
    caller: Caller = object.__getattribute__(target, "_Remote__caller")
    return caller.request(operation, target, *args, **kwargs)


def number_of(target: Remote) -> int:
    """The number of a value of the other side."""
    number: int = object.__getattribute__(target, "_Remote__number")
    return number


def may_mix(target: Remote, other: object) -> bool:
    """Whether the two may be compared or combined over there."""
    caller: Caller = object.__getattribute__(target, "_Remote__caller")
    return isinstance(other, Remote) or not caller.strict


def _plain(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    checked: T = value
    return checked


def _two(operation: str) -> Callable[[Remote, object], Any]:
    def done(self: Remote, other: object) -> Any:
        return request(self, operation, other) if may_mix(self, other) else NotImplemented

    return done


def _one(operation: str) -> Callable[[Remote], Any]:
    return lambda self: request(self, operation)


for _name in (*COMPARISONS, *ARITHMETIC):
    setattr(Remote, f"__{_name.rstrip('_')}__", _two(_name))
for _name in UNARY:
    setattr(Remote, f"__{_name}__", _one(_name))

OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*COMPARISONS, *ARITHMETIC, *UNARY)},
    "call": lambda target, *args, **kwargs: target(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "iter": iter,
    "next": next,
    "len": len,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    "bool": bool,
    "hash": hash,
    "str": str,
    "repr": repr,
    "int": int,
    "float": float,
    "round": round,
    "enter": lambda target: type(target).__enter__(target),
    "exit": lambda target: type(target).__exit__(target, None, None, None),
    "isinstance": lambda target, value: isinstance(value, target),
    "issubclass": lambda target, value: issubclass(value, target),
}
