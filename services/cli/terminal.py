"""Text of models and servers on a terminal: shown as it is, and never obeyed."""

from __future__ import annotations

import re

from rich.console import Console

# All control characters but tab and newline, and lone surrogates, which no terminal's encoding has.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with control characters written out (`\x1b`)."""
    return _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def plain_console(*, stderr: bool = False) -> Console:
    """A console that takes no text for markup, emoji names or something to be coloured."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
