"""JSON out: whatever a text holds, an answer can be encoded."""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.responses import JSONResponse

_SURROGATE = re.compile("[\ud800-\udfff]")


def is_text(value: str) -> bool:
    """Whether a string is Unicode text: lone surrogates, which JSON can spell, have no encoding."""
    return value.isascii() or _SURROGATE.search(value) is None


def escaped(value: str) -> str:
    r"""The string with lone surrogates written out (`\ud800`), for messages that quote what a client sent."""
    return value if is_text(value) else value.encode("utf-8", "backslashreplace").decode()


def scrubbed(value: Any) -> Any:
    """A JSON value with U+FFFD in place of every lone surrogate, as decoders do for broken bytes."""
    if isinstance(value, str):
        return value if is_text(value) else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {scrubbed(k): scrubbed(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(v) for v in value]
    return value


def encode(content: Any) -> bytes:
    """A JSON value as UTF-8.

    Raises:
        TypeError: it holds something that is no JSON value.
    """
    try:
        return orjson.dumps(content)
    except TypeError:
        return orjson.dumps(scrubbed(content))


class JsonAnswer(JSONResponse):
    """A response that is encoded by `encode`."""

    def render(self, content: Any) -> bytes:
        return encode(content)
