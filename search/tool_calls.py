"""Calls of tools in a model's text: found, and brought to a normal form by which a vote groups them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from search.json_key import json_key

MAX_CALLS = 32
"""Calls read from one text; more make it no tool call at all."""


@dataclass(frozen=True, slots=True)
class ToolMarkers:
    """How a model marks a call of a tool: a JSON object with `name` and `arguments` between two strings.

    Raises:
        ValueError: a marker is empty or both are the same.
    """

    open: str = "<tool_call>"
    close: str = "</tool_call>"

    def __post_init__(self) -> None:
        if not self.open or not self.close or self.open == self.close:
            raise ValueError("tool call markers `open` and `close` must be non-empty and differ")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name and its arguments as canonical JSON."""

    name: str
    arguments: str


def tool_calls(visible: str, markers: ToolMarkers) -> tuple[ToolCall, ...]:
    """The calls in a text (its thinking left out), in their order; empty when there is none.

    A text with a malformed or unclosed call, or with more than `MAX_CALLS`, calls nothing: half a call must
    never be acted on.
    """
    calls: list[ToolCall] = []
    at = visible.find(markers.open)
    while at >= 0:
        end = visible.find(markers.close, at)
        call = None if end < 0 else _call(visible[at + len(markers.open) : end])
        if call is None or len(calls) == MAX_CALLS:
            return ()
        calls.append(call)
        at = visible.find(markers.open, end)
    return tuple(calls)


def tool_calls_key(calls: tuple[ToolCall, ...]) -> str:
    """Equal for the same calls in the same order."""
    return json.dumps([[c.name, c.arguments] for c in calls], separators=(",", ":"))


def _call(text: str) -> ToolCall | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    key = json_key(json.dumps(arguments))
    return None if key is None else ToolCall(value["name"], key)
