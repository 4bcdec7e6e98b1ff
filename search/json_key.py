"""The normal form of a JSON value, by which structured answers are grouped."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

MAX_LENGTH = 100_000
"""Longer texts are no answers."""
_MOST_EXPONENT = 400


def json_key(text: str) -> str | None:
    """Canonical JSON of a text that is one JSON value: members sorted, numbers by value, no spaces.

    `1`, `1.0` and `1e0` are the same number; `true` is not `1`; strings are compared as they are.

    Returns:
        The key, or None when the text is no JSON, repeats a member's name, or is longer than `MAX_LENGTH`.
    """
    if len(text) > MAX_LENGTH:
        return None
    try:
        value = json.loads(
            text, parse_float=_number, parse_int=_number, parse_constant=_refuse, object_pairs_hook=_members
        )
        return _write(value)
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _number(text: str) -> Decimal:
    value = Decimal(text)
    if value and abs(value.adjusted()) > _MOST_EXPONENT:
        raise ValueError("the number is out of range")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member's name is repeated")
    return members


def _write(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_write(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, Decimal):
        text = f"{value:f}" if value else "0"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return json.dumps(value)
