"""Checks of technique parameters: a refusal names the field and its legal values."""

from __future__ import annotations

MAX_SAMPLES = 1024


def require_int(name: str, value: int, low: int, high: int) -> None:
    """Raises ValueError unless `value` is a whole number in low..high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number in {low}..{high}, not {value!r}")


def require_float(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless `value` is a number in low..high."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a number in {low}..{high}, not {value!r}")


def require_one_of(name: str, value: str, legal: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `legal`."""
    if value not in legal:
        raise ValueError(f"{name} must be one of {', '.join(legal)}, not {value!r}")
