"""Reading the params of an inner technique from plain data: the same verdict for a request and for a log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from search.nesting import BadParam

T = TypeVar("T")
_KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read_params(kind: type[T], given: Mapping[str, object], path: str) -> T:
    """The dataclass `kind` of these fields.

    Args:
        given: plain data: mappings, tuples or lists, texts, numbers.
        path: where they stand in the outer params, for the refusal.

    Raises:
        BadParam: a field is unknown, of another type or out of its range.
    """
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise BadParam(f"{path}.{_shown(name)}", f"there is no such parameter; legal: {', '.join(names)}")
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    refused: BadParam | None = None
    for name, value in given.items():
        try:
            values[name] = _read(hints[name], value, f"{path}.{name}")
        except BadParam as e:
            if e.path != f"{path}.{name}":
                raise
            # The dataclass may know the legal values better.
            refused, values[name] = refused or e, value
    try:
        made = kind(**values)
    except ValueError as e:
        field = str(e).split(" ", 1)[0]
        raise BadParam(f"{path}.{field}" if field in names else path, str(e)) from None
    except TypeError as e:
        raise refused or BadParam(path, str(e)) from None
    if refused is not None:
        raise refused
    return made


def _read(hint: Any, value: object, path: str) -> object:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _KINDS:
        return _scalar(hint, value, path)
    if origin is Literal:
        if value not in args:
            raise BadParam(path, f"must be one of {', '.join(map(str, args))}, not {_shown(value)}")
        return value
    if origin in (Union, UnionType):
        return _either(args, value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadParam(path, f"must be a list, not {_shown(value)}")
        return tuple(_read(args[0], inner, f"{path}.{i}") for i, inner in enumerate(value))
    if isinstance(hint, type) and is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise BadParam(path, f"must be an object, not {_shown(value)}")
        return read_params(hint, value, path)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise BadParam(path, f"must be an object, not {_shown(value)}")
        return value
    raise TypeError(f"{path} has the type {hint}, which params must not have")


def _scalar(kind: Any, value: object, path: str) -> object:
    legal = (int, float) if kind is float else kind
    if not isinstance(value, legal) or (isinstance(value, bool) and kind is not bool):
        raise BadParam(path, f"must be {_KINDS[kind]}, not {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadParam(path, f"must be a finite number, not {value}")
    return value


def _either(kinds: tuple[Any, ...], value: object, path: str) -> object:
    if value is None and NoneType in kinds:
        return None
    refused: list[BadParam] = []
    for kind in kinds:
        if kind is NoneType:
            continue
        try:
            return _read(kind, value, path)
        except BadParam as e:
            refused.append(e)
    raise BadParam(path, " or ".join(e.why for e in refused) + (" or null" if NoneType in kinds else ""))


def _shown(value: object) -> str:
    shown = repr(value) if not isinstance(value, str) else value
    return shown[:64].encode("ascii", "backslashreplace").decode()
