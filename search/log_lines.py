"""The entries of an event log as rows of JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search.codec import decode, encode
from search.contract import (
    Check,
    Checked,
    Chunk,
    Compare,
    Compared,
    Costs,
    Equate,
    Equated,
    Failed,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
)
from search.ground import NO_PHRASES, Phrase
from search.log_entries import Asked, Entry, Header, Released, Told
from search.registry import Technique
from search.sample import SampleLimits

_CALLS: Mapping[str, type[Any]] = {
    "generate": Generate,
    "score": Score,
    "check": Check,
    "compare": Compare,
    "equate": Equate,
}
_EVENTS: Mapping[str, type[Any]] = {
    "chunk": Chunk,
    "generated": Generated,
    "scored": Scored,
    "checked": Checked,
    "compared": Compared,
    "equated": Equated,
    "failed": Failed,
}


def line_of(row: Mapping[str, Any]) -> str:
    """One line of ASCII; equal rows give equal lines."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def entry_row(entry: Entry) -> dict[str, Any]:
    """The row of an entry."""
    if isinstance(entry, Asked):
        return {"ask": encode(entry.room), "calls": [_tagged(c, _CALLS) for c in entry.calls]}
    if isinstance(entry, Released):
        return {"release": True}
    return {"tell": _tagged(entry.event, _EVENTS), "cancel": list(entry.cancels)}


def entry_of(row: Mapping[str, Any]) -> Entry:
    """The entry of a row. Raises as `header_of`."""
    if "ask" in row:
        return Asked(decode(Room, row["ask"]), tuple(_untagged(c, _CALLS) for c in row["calls"]))
    if row == {"release": True}:
        return Released()
    return Told(_untagged(row["tell"], _EVENTS), tuple(int(c) for c in row["cancel"]))


def header_row(header: Header) -> dict[str, Any]:
    """The row of a header."""
    row: dict[str, Any] = encode(replace(header, phrases=NO_PHRASES))
    return row | {"phrases": {name: encode(phrase) for name, phrase in header.phrases.items()}}


def header_of(row: Mapping[str, Any], techniques: Mapping[str, Technique]) -> Header:
    """The header of a row.

    Raises:
        ValueError: a value is refused, or the technique is unknown.
        AttributeError, KeyError, TypeError: a field is missing, not known, or of another kind.
    """
    name = row["technique"]
    if name not in techniques:
        raise ValueError(f"unknown technique {name!r}")
    params = decode(techniques[name].params_type, row["params"])
    techniques[name].check(params)
    return Header(
        technique=name,
        params=params,
        limits=decode(SampleLimits, row["limits"]),
        costs=decode(Costs, row["costs"]),
        seed=int(row["seed"]),
        prompt_ids=tuple(int(t) for t in row["prompt_ids"]),
        phrases={name: decode(Phrase, phrase) for name, phrase in row["phrases"].items()},
    )


def _tagged(value: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    kind = next(k for k, t in kinds.items() if type(value) is t)
    return {"kind": kind, **encode(value)}


def _untagged(row: Mapping[str, Any], kinds: Mapping[str, type[Any]]) -> Any:
    fields = dict(row)
    return decode(kinds[fields.pop("kind")], fields)
