"""The event log of a search: recorded, written as JSON lines, and played again.

A search is a function of its header and of what it was asked and told. So the log is its trace, and a
search can be rebuilt from it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from search.contract import Branch, Call, CallId, Candidate, Event, Room, Search
from search.log_entries import Asked, Entry, Header, Released, Told
from search.log_lines import entry_of, entry_row, header_of, header_row, line_of
from search.registry import TECHNIQUES, Technique
from search.tree import Tree

__all__ = [
    "FORMAT",
    "Asked",
    "Entry",
    "EventLog",
    "Header",
    "Recorder",
    "Released",
    "ReplayMismatch",
    "Told",
    "build",
    "record",
    "replay",
]

FORMAT = 3
"""Of the lines; a log of another one is refused."""


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
        header = {"format": FORMAT, "max_entries": self.max_entries, **header_row(self.header)}
        lines = [line_of(header), *(line_of(entry_row(e)) for e in self.entries)]
        return [*lines, line_of({"truncated": True})] if self.truncated else lines

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
            log = cls(header_of(rows[0], techniques), int(rows[0]["max_entries"]))
            for row in rows[1:]:
                if log.truncated:
                    raise ValueError("entries after the end of a truncated log")
                if row == {"truncated": True}:
                    log.truncated = True
                else:
                    log.entries.append(entry_of(row))
        except (AttributeError, KeyError, TypeError) as e:
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
