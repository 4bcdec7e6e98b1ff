"""Flat dataclasses to JSON values and back, without loss: floats that JSON has not are written as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

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
    return kind(**{name: _decoded(value) for name, value in row.items()})


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(v) for v in value)
    if isinstance(value, dict):
        if "map" in value:
            return {name: _decoded(v) for name, v in value["map"].items()}
        return _NOT_FINITE[value["float"]]
    return value
