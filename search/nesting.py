"""Techniques within techniques: what a composite names, and how its inner searches are made and checked.

A composite's params name inner techniques as `Stage`s. The registry knows all techniques and imports the
composites, so they are handed a `Nest` by it and import no registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias

from search.contract import Search
from search.ground import Ground
from search.params import require_int

MAX_DEPTH = 3
"""Searches within one another at most: a cascade of votes is two deep."""
MAX_STAGES = 8
MAX_TIER = 15
_MAX_LEVELS = 4 * MAX_DEPTH
"""Levels of lists and mappings in a stage's params; three stages within one another need fewer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """An inner search of a composite.

    Args:
        technique: its name in the registry.
        params: its parameters by name; those left out have their defaults. Kept as plain data (mappings,
            tuples, texts, numbers), which is checked against the technique where the search is built.
        tier: the engine tier that runs it, 0 being that of the search around it.

    Raises:
        ValueError: a value is out of its range, or not plain data.
    """

    technique: str
    params: Mapping[str, object] = field(default_factory=dict)
    tier: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.technique, str) or not self.technique:
            raise ValueError(f"technique must be the name of one, not {self.technique!r}")
        if not isinstance(self.params, Mapping):
            raise ValueError(f"params must be parameters by name, not {self.params!r}")
        require_int("tier", self.tier, 0, MAX_TIER)
        # The same params are equal whether they come from JSON, from a log or from Python.
        object.__setattr__(self, "params", _plain(self.params, _MAX_LEVELS))


Nest: TypeAlias = Callable[[Stage, Ground], Search]
"""Makes the search of a stage on a ground.

Raises:
    ValueError: the stage is not valid, or the technique refuses the ground.
"""


class BadParam(ValueError):
    """A parameter within nested params is refused.

    Args:
        path: where it stands, such as `stages.1.params.n`; empty for the params as a whole.
        why: what is wrong, with the legal values.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path
        self.why = why


def require_stages(name: str, stages: tuple[Stage, ...], low: int) -> None:
    """Raises ValueError unless these are `low`..`MAX_STAGES` stages."""
    whole = isinstance(stages, tuple) and all(isinstance(stage, Stage) for stage in stages)
    if not whole or not low <= len(stages) <= MAX_STAGES:
        raise ValueError(f"{name} must be {low}..{MAX_STAGES} stages")


def stages_of(params: Any) -> list[tuple[str, Stage]]:
    """The stages that params name, each with the path to it, such as `stages.1`."""
    found: list[tuple[str, Stage]] = []
    for f in fields(params):
        value = getattr(params, f.name)
        if isinstance(value, Stage):
            found.append((f.name, value))
        elif isinstance(value, tuple):
            found += [(f"{f.name}.{i}", item) for i, item in enumerate(value) if isinstance(item, Stage)]
    return found


def _plain(value: object, levels: int) -> object:
    """Mappings, tuples and scalars; all that is equal when it has been to JSON and back."""
    if levels < 0:
        raise ValueError(f"params must not hold more than {_MAX_LEVELS} levels of lists and mappings")
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), levels - 1) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, levels - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(inner, levels - 1) for inner in value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"params must be plain data, without a {type(value).__name__}")
