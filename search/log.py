"""The event log of a search: recorded, written as JSON lines, and played again.

A search is a function of its header and of what it was asked and told. So the log is its trace, and a
search can be rebuilt from it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from search.codec import decode, encode
from search.contract import (
    Branch,
    Call,
    CallId,
    Candidate,
    Check,
    Checked,
    Chunk,
    Compare,
    Compared,
    Costs,
    Equate,
    Equated,
    Event,
    Failed,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
    Search,
)
from search.ground import NO_PHRASES, Phrase
from search.registry import TECHNIQUES, Technique
from search.sample import SampleLimits
from search.tree import Tree

FORMAT = 3
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


@dataclass(frozen=True, slots=True)
class Header:
    """All that a search is built from."""

    technique: str
    params: Any
    limits: SampleLimits
    costs: Costs
    seed: int
    prompt_ids: tuple[int, ...]
    phrases: Mapping[str, Phrase] = field(default_factory=lambda: NO_PHRASES)


@dataclass(frozen=True, slots=True)
class Asked:
    """The search was asked within `room` and answered with `calls`."""

    room: Room
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """The search was told `event` and gave `cancels` back."""

    event: Event
    cancels: tuple[CallId, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """The search was told that its KV is gone."""


Entry: TypeAlias = Asked | Told | Released


class ReplayMismatch(Exception):
    """A replayed search did something else than the recorded one.

    Args:
        entry: number of the entry, from 0.
        expected: what was recorded.
        got: what the replayed search did.
    """

    def __init__(self, entry: int, expected: object, got: object) -> None:
        super().__init__(f"entry {entry}: expected {expected}, got {got}")
        self.entry = entry
        self.expected = expected
        self.got = got


@dataclass(slots=True)
class EventLog:
    """A bounded log. When it is full it takes no more and says so by `truncated`.

    Args:
        header: what the search was built from.
        max_entries: the bound.
    """

    header: Header
    max_entries: int
    entries: list[Entry] = field(default_factory=list)
    truncated: bool = False

    def append(self, entry: Entry) -> None:
        if self.truncated or len(self.entries) >= self.max_entries:
            self.truncated = True
        else:
            self.entries.append(entry)

    def to_lines(self) -> list[str]:
        """One JSON object a line, ASCII: the header, the entries, and a last line when truncated.

        The same log always gives the same bytes.
        """
        header = {"format": FORMAT, "max_entries": self.max_entries, **_header_out(self.header)}
        lines = [_line(header), *(_line(_entry_out(e)) for e in self.entries)]
        return [*lines, _line({"truncated": True})] if self.truncated else lines

    @classmethod
    def from_lines(cls, lines: Iterable[str], techniques: Mapping[str, Technique] = TECHNIQUES) -> EventLog:
        """Read what `to_lines` wrote.

        Raises:
            ValueError: a line is malformed, of another format version, or names an unknown technique.
        """
        rows = [json.loads(line) for line in lines]
        if not rows or not isinstance(rows[0], dict) or rows[0].get("format") != FORMAT:
            raise ValueError(f"not an event log of format {FORMAT}")
        try:
            log = cls(_header_in(rows[0], techniques), int(rows[0]["max_entries"]))
            for row in rows[1:]:
                if log.truncated:
                    raise ValueError("entries after the end of a truncated log")
                if row == {"truncated": True}:
                    log.truncated = True
                else:
                    log.entries.append(_entry_in(row))
        except (KeyError, TypeError) as e:
            raise ValueError(f"malformed event log: {e!r}") from e
        return log


class Recorder:
    """A search that records what another one is asked and told, and is otherwise that search."""

    def __init__(self, search: Search, log: EventLog) -> None:
        self._search = search
        self.log = log

    @property
    def tree(self) -> Tree:
        return self._search.tree

    @property
    def finished(self) -> bool:
        return self._search.finished

    @property
    def stop_reason(self) -> str | None:
        return self._search.stop_reason

    def ask(self, room: Room) -> list[Call]:
        calls = self._search.ask(room)
        self.log.append(Asked(room, tuple(calls)))
        return calls

    def tell(self, event: Event) -> list[CallId]:
        cancels = self._search.tell(event)
        self.log.append(Told(event, tuple(cancels)))
        return cancels

    def release(self) -> None:
        self._search.release()
        self.log.append(Released())

    def best(self) -> Candidate | None:
        return self._search.best()

    def gain(self) -> float:
        return self._search.gain()

    def branches(self) -> Sequence[Branch]:
        return self._search.branches()


def build(header: Header, techniques: Mapping[str, Technique] = TECHNIQUES) -> Search:
    """The search that a header describes, before anything was asked.

    Raises:
        ValueError: the technique is unknown, or as `Technique.build`.
        TypeError: the params are of another technique.
    """
    if header.technique not in techniques:
        raise ValueError(f"unknown technique {header.technique!r}")
    technique = techniques[header.technique]
    return technique.build(
        header.prompt_ids, header.params, header.limits, header.costs, header.seed, header.phrases
    )


def record(header: Header, max_entries: int, techniques: Mapping[str, Technique] = TECHNIQUES) -> Recorder:
    """A new search under a recorder. Raises as `build`."""
    return Recorder(build(header, techniques), EventLog(header, max_entries))


def replay(log: EventLog, techniques: Mapping[str, Technique] = TECHNIQUES) -> Search:
    """Build the search again and lead it through the log, to where the log ends.

    Raises:
        ReplayMismatch: it asked or cancelled something else than was recorded.
        ValueError, TypeError: as `build`.
    """
    search = build(log.header, techniques)
    for number, entry in enumerate(log.entries):
        expected: tuple[object, ...] = ()
        got: tuple[object, ...] = ()
        if isinstance(entry, Asked):
            expected, got = entry.calls, tuple(search.ask(entry.room))
        elif isinstance(entry, Told):
            expected, got = entry.cancels, tuple(search.tell(entry.event))
        else:
            _release(search, number)
        if expected != got:
            raise ReplayMismatch(number, expected, got)
    return search


def _release(search: Search, number: int) -> None:
    try:
        search.release()
    except RuntimeError as e:
        raise ReplayMismatch(number, "nothing in flight", str(e)) from e


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _entry_out(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Asked):
        return {"ask": encode(entry.room), "calls": [_tagged(c, _CALLS) for c in entry.calls]}
    if isinstance(entry, Released):
        return {"release": True}
    return {"tell": _tagged(entry.event, _EVENTS), "cancel": list(entry.cancels)}


def _entry_in(row: Mapping[str, Any]) -> Entry:
    if "ask" in row:
        return Asked(decode(Room, row["ask"]), tuple(_untagged(c, _CALLS) for c in row["calls"]))
    if row == {"release": True}:
        return Released()
    return Told(_untagged(row["tell"], _EVENTS), tuple(int(c) for c in row["cancel"]))


def _header_out(header: Header) -> dict[str, Any]:
    row: dict[str, Any] = encode(replace(header, phrases=NO_PHRASES))
    return row | {"phrases": {name: encode(phrase) for name, phrase in header.phrases.items()}}


def _header_in(row: Mapping[str, Any], techniques: Mapping[str, Technique]) -> Header:
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
