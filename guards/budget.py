"""What a tenant may spend: tokens per fixed calendar window, UTC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Window: TypeAlias = Literal["minute", "day", "month"]

WINDOWS: Final[tuple[Window, ...]] = ("minute", "day", "month")

MAX_TOKENS: Final = 10**15
"""Largest token count taken anywhere; sums of such counts stay exact in a Lua double (2**53)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Token limits of a tenant; the default is a tenant without limits.

    Args:
        minute, day, month: most tokens in that window; None is no limit, 0 suspends the tenant.

    Raises:
        ValueError: a limit is negative or above `MAX_TOKENS`.
        TypeError: a limit is no integer.
    """

    minute: int | None = None
    day: int | None = None
    month: int | None = None

    def __post_init__(self) -> None:
        for window in WINDOWS:
            limit = self.limit(window)
            if limit is None:
                continue
            if type(limit) is not int:
                raise TypeError(f"the {window} limit must be an integer or None")
            if not 0 <= limit <= MAX_TOKENS:
                raise ValueError(f"the {window} limit must lie in 0..{MAX_TOKENS}")

    def limit(self, window: Window) -> int | None:
        """Most tokens in `window`, or None when it has no limit."""
        return {"minute": self.minute, "day": self.day, "month": self.month}[window]

    @property
    def suspended(self) -> bool:
        """Whether some limit is 0, which is a decision about the tenant and not a used-up budget."""
        return 0 in (self.minute, self.day, self.month)
