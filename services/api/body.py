"""JSON in: what a body may be before a schema looks at it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from orchestrator.errors import QueryError
from services.api.encoding import escaped, is_text

MOST_LEVELS = 64
_MOST_SHOWN = 64
# Strings are taken whole, closed or not, so that one pass over the text is enough.
_BRACKET_OR_STRING = re.compile(r'[\[\]{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(raw: bytes) -> Any:
    """The JSON value of a body.

    Stricter than Python's own parser: UTF-8 only, no `NaN` or `Infinity` in any spelling (`1e999`), no key
    twice in an object, no lone surrogate in any string or key, at most `MOST_LEVELS` levels.

    Raises:
        QueryError: status 400; says what is wrong and, for a string, in which field.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        _refuse(f"the body is not valid UTF-8 at byte {e.start}")
    _check_levels(text)
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_distinct
        )
    except json.JSONDecodeError as e:
        _refuse(f"the body is not valid JSON: {e.msg} at character {e.pos}")
    except ValueError:
        _refuse("the body is not valid JSON: an integer has too many digits")
    if _SURROGATE_ESCAPE.search(text):
        _check_text(value, ())
    return value


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if media != "application/json":
                raise QueryError(
                    "send the body as JSON, with 'Content-Type: application/json'",
                    code="unsupported_media_type",
                    status=415,
                )
            return await handler(_Parsed(request, parse(await request.body())))

        return strict


class _Parsed(Request):
    """A request whose body has been parsed already."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._body = b"{}"  # not empty, or else the framework would not ask for the value
        self._value = value

    async def json(self) -> Any:
        return self._value


def _refuse(message: str, field: str | None = None) -> NoReturn:
    raise QueryError(message, code="invalid_json", status=400, field=field) from None


def _check_levels(text: str) -> None:
    """Before parsing, since a parser that recurses has to be kept from it."""
    if text.count("[") + text.count("{") <= MOST_LEVELS:
        return
    level = 0
    for found in _BRACKET_OR_STRING.finditer(text):
        first = text[found.start()]
        if first in "[{":
            level += 1
            if level > MOST_LEVELS:
                _refuse(f"the body is nested too deeply; at most {MOST_LEVELS} levels")
        elif first in "]}":
            level -= 1


def _no_constant(name: str) -> NoReturn:
    _refuse(f"the body is not valid JSON: {name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _refuse(f"the body holds a number that is too large: {text[:_MOST_SHOWN]}")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"an object in the body has the key {escaped(key)[:_MOST_SHOWN]!r} twice")
            seen.add(key)
    return value


def _check_text(value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, str):
        if not is_text(value):
            field = escaped(".".join(path))[: 4 * _MOST_SHOWN] or None
            where = f"{field}: " if field else ""
            _refuse(f"{where}not Unicode text; it holds a lone surrogate", field)
    elif isinstance(value, dict):
        for key, below in value.items():
            _check_text(key, (*path, key))
            _check_text(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            _check_text(below, (*path, str(index)))
