"""What goes through the pipes of the mathematics processes: one JSON object a line, of bounded length."""

from __future__ import annotations

import json
from typing import Any

MOST_BYTES = 64 << 10
"""A longer line is refused. Six bytes stand for a character at the most, so answers have to be shorter."""


class WireError(Exception):
    """What came through a pipe is no message."""


def pack(message: dict[str, Any]) -> bytes:
    """A message as a line of ASCII.

    Raises:
        WireError: it is too long.
    """
    line = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    if len(line) > MOST_BYTES:
        raise WireError("the message is too long")
    return line


def unpack(line: bytes) -> dict[str, Any]:
    """The message of a line.

    Raises:
        WireError: it is none.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise WireError("the line is not JSON") from exc
    if not isinstance(message, dict):
        raise WireError("the line is no JSON object")
    return message


class Lines:
    """Cuts a stream of bytes into messages, however it was cut on its way."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take in bytes; returns the messages that they complete.

        Raises:
            WireError: a line is no message, or is longer than `MOST_BYTES`.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES or any(len(line) > MOST_BYTES for line in lines):
            raise WireError("a line is too long")
        return [unpack(line) for line in lines if line]
