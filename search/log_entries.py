"""What the log of a search holds: what the search was built from, and what it was asked and told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from search.contract import Call, CallId, Costs, Event, Room
from search.ground import NO_PHRASES, Phrase
from search.sample import SampleLimits


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
