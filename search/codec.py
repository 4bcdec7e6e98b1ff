"""Dataclasses to JSON values and back, without loss: floats that JSON has not are written as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

T = TypeVar("T")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """JSON values for a dataclass of numbers, texts, tuples and further dataclasses.

    A float that is not finite becomes `{"float": "NaN" | "Infinity" | "-Infinity"}`.

    Raises:
        TypeError: a value has another type.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {"map": {str(k): encode(v) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"cannot write a {type(value).__name__} to an event log")


def decode(kind: type[T], row: Mapping[str, Any]) -> T:
    """The dataclass `kind` from what `encode` made of it; lists become tuples.

    Raises:
        TypeError: a field is missing or not known.
        ValueError: the dataclass refuses a value.
    """
    kinds = _dataclass_fields(cast(Any, kind))
    return kind(**{name: _decoded(value, kinds.get(name)) for name, value in row.items()})


def _decoded(value: Any, kind: type[Any] | None = None) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(v, kind) for v in value)
    if isinstance(value, dict):
        if kind is not None:
            return decode(kind, value)
        if "map" in value:
            return {name: _decoded(v) for name, v in value["map"].items()}
        return _NOT_FINITE[value["float"]]
    return value


@lru_cache(maxsize=128)
def _dataclass_fields(kind: type[Any]) -> Mapping[str, type[Any]]:
    """The fields of a dataclass that hold dataclasses: one, one or None, or a tuple of them."""
    found: dict[str, type[Any]] = {}
    for name, hint in get_type_hints(kind).items():
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and is_dataclass(inner):
                found[name] = inner
    return found
