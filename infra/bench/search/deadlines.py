"""Answers at random deadlines: how late they come, and whether more time gives better ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.progress import Progress

from infra.bench.problems import Problem
from infra.bench.search.ask import Row, ask
from infra.bench.search.configs import BEST_TREE, MODEL

COUNT = 200
SHORTEST_MS, LONGEST_MS = 30, 1500
BUCKETS = 4


@dataclass(frozen=True, slots=True)
class Deadline:
    """One query with a deadline; `late_ms` is negative for an answer that came before it."""

    row: Row
    deadline_ms: int
    late_ms: float


async def at_random_deadlines(
    client: httpx.AsyncClient, problems: Sequence[tuple[int, Problem]], progress: Progress
) -> list[Deadline]:
    """One query after the other, each with a deadline of its own, evenly spread in its logarithm."""
    rng = random.Random(5)
    low, high = float(SHORTEST_MS), float(LONGEST_MS)
    task = progress.add_task(f"random deadlines, {MODEL}", total=COUNT)
    results: list[Deadline] = []
    for number in range(COUNT):
        seed, problem = problems[number % len(problems)]
        deadline_ms = round(low * (high / low) ** rng.random())
        row = await ask(client, BEST_TREE, problem, seed, deadline_ms=deadline_ms)
        results.append(Deadline(row, deadline_ms, row.seconds * 1000 - deadline_ms))
        progress.advance(task)
    progress.remove_task(task)
    return results


def buckets(results: Sequence[Deadline]) -> list[tuple[int, int, float, float]]:
    """Of each quarter, shortest first: longest deadline (ms), queries, share answered and share right."""
    ordered = sorted(results, key=lambda r: r.deadline_ms)
    size = -(-len(ordered) // BUCKETS)
    out = []
    for start in range(0, len(ordered), size):
        part = ordered[start : start + size]
        answered = sum(r.row.answered for r in part) / len(part)
        right = sum(r.row.right for r in part) / len(part)
        out.append((part[-1].deadline_ms, len(part), answered, right))
    return out


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share (0..1) of all lies at or below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
