"""The tiny reasoner's held-out problems."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import infra

HELD_OUT = Path(infra.__file__).parent / "models" / "tiny_reasoner" / "heldout.jsonl"
PER_LEVEL = 200


@dataclass(frozen=True, slots=True)
class Problem:
    id: str
    level: int
    prompt: str
    answer: int


def held_out(first: int, count: int) -> list[Problem]:
    """Problems `first` to `first + count - 1` of every level, levels interleaved.

    The checkpoint was chosen on problems 0 to 59 of each level; the rest are untouched.
    """
    if not 0 <= first < first + count <= PER_LEVEL:
        raise ValueError(f"a level has problems 0 to {PER_LEVEL - 1}")
    rows = [Problem(**json.loads(line)) for line in HELD_OUT.read_text().splitlines()]
    chosen = [p for p in rows if first <= int(p.id.split("-")[1]) < first + count]
    return sorted(chosen, key=lambda p: (p.id.split("-")[1], p.level))
