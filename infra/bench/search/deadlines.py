"""Answers at random deadlines: how late they come, and whether more time gives better ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.progress import Progress

from infra.bench.problems import Problem
from infra.bench.search.ask import Row, ask
from infra.bench.search.configs import BEST_TREE, MODEL, Config, N

SHORTEST_MS, LONGEST_MS = 30, 4000
BUCKETS = 4
CONFIGS: tuple[Config, ...] = (
    BEST_TREE,
    Config("majority 16, 4 at once", "self_consistency", {"n": N, "width": 4, "stop": "none"}),
)
"""A tree, which has its answers late, and a vote, which has its first one early; problems take turns."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """One query with a deadline; `late_ms` is negative for an answer that came before it."""

    row: Row
    bucket: int
    deadline_ms: int
    late_ms: float


async def at_random_deadlines(
    client: httpx.AsyncClient, problems: Sequence[tuple[int, Problem]], progress: Progress
) -> list[Deadline]:
    """One query after the other, each with a deadline of its own, in random order.

    Each problem has one deadline at random in each bucket, so that the buckets hold the same problems. The
    buckets are evenly spread in the deadline's logarithm.
    """
    rng = random.Random(5)
    growth = (LONGEST_MS / SHORTEST_MS) ** (1 / BUCKETS)
    planned = [
        (
            bucket,
            round(SHORTEST_MS * growth ** (bucket + rng.random())),
            CONFIGS[number % len(CONFIGS)],
            problem,
        )
        for bucket in range(BUCKETS)
        for number, problem in enumerate(problems)
    ]
    rng.shuffle(planned)
    task = progress.add_task(f"random deadlines, {MODEL}", total=len(planned))
    results: list[Deadline] = []
    for bucket, deadline_ms, config, (seed, problem) in planned:
        row = await ask(client, config, problem, seed, deadline_ms=deadline_ms)
        results.append(Deadline(row, bucket, deadline_ms, row.seconds * 1000 - deadline_ms))
        progress.advance(task)
    progress.remove_task(task)
    return results


def buckets(results: Sequence[Deadline]) -> list[tuple[int, int, float, float]]:
    """Of each bucket, shortest first: longest deadline (ms), queries, share answered and share right."""
    out = []
    for bucket in range(BUCKETS):
        part = [r for r in results if r.bucket == bucket]
        answered = sum(r.row.answered for r in part) / len(part)
        right = sum(r.row.right for r in part) / len(part)
        out.append((max(r.deadline_ms for r in part), len(part), answered, right))
    return out


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share (0..1) of all lies at or below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
