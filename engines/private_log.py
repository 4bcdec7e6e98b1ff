"""What must not reach a client: to stderr, which Ray keeps in the actor's log."""

from __future__ import annotations

import sys

_LONGEST = 4_000


def write(text: str) -> None:
    """One bounded entry of the log."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"
    print(cut, file=sys.stderr, flush=True)  # noqa: T201
