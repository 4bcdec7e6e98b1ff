"""From rows to the figures that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.bench.search.ask import Row
from infra.bench.stats import Paired, compare, wilson

SEED = 11


@dataclass(frozen=True, slots=True)
class Figures:
    """One configuration over its problems. Tokens and seconds are means per problem."""

    config: str
    problems: int
    accuracy: float
    low: float
    high: float
    tokens: float
    generated: float
    verifier: float
    after_stop: float
    prefix_hit: float
    seconds: float
    by_level: Mapping[int, float]


def figures(rows: Sequence[Row]) -> Figures:
    """Figures of rows of one configuration.

    Raises:
        ValueError: there are none, or of several configurations.
    """
    names = {row.config for row in rows}
    if len(names) != 1:
        raise ValueError(f"rows of {len(names)} configurations")
    count, right = len(rows), sum(row.right for row in rows)
    low, high = wilson(right, count)
    cached, fresh = sum(r.cached for r in rows), sum(r.fresh for r in rows)
    levels = sorted({row.level for row in rows})
    return Figures(
        config=names.pop(),
        problems=count,
        accuracy=right / count,
        low=low,
        high=high,
        tokens=sum(r.tokens for r in rows) / count,
        generated=sum(r.generated for r in rows) / count,
        verifier=sum(r.verifier for r in rows) / count,
        after_stop=sum(r.after_stop for r in rows) / max(1, sum(r.generated for r in rows)),
        prefix_hit=cached / max(1, cached + fresh),
        seconds=sum(r.seconds for r in rows) / count,
        by_level={
            level: sum(r.right for r in rows if r.level == level) / sum(r.level == level for r in rows)
            for level in levels
        },
    )


def paired(ours: Sequence[Row], theirs: Sequence[Row]) -> Paired:
    """Compare two configurations on the problems that both had, by the share of runs that were right.

    Raises:
        ValueError: they have none in common.
    """
    mine, other = _shares(ours), _shares(theirs)
    both = [problem for problem in mine if problem in other]
    return compare([mine[p] for p in both], [other[p] for p in both], SEED)


def token_ratio(ours: Sequence[Row], theirs: Sequence[Row], levels: Sequence[int]) -> float:
    """Charged tokens of the one over those of the other on these levels."""
    return _tokens(ours, levels) / _tokens(theirs, levels)


def flagged(all_figures: Sequence[Figures], baseline: Figures) -> list[str]:
    """Configurations that are no better than the baseline and cost more tokens."""
    return [f.config for f in all_figures if f.accuracy <= baseline.accuracy and f.tokens > baseline.tokens]


def _shares(rows: Sequence[Row]) -> dict[str, float]:
    runs: dict[str, list[bool]] = {}
    for row in rows:
        runs.setdefault(row.problem, []).append(row.right)
    return {problem: sum(right) / len(right) for problem, right in runs.items()}


def _tokens(rows: Sequence[Row], levels: Sequence[int]) -> int:
    return sum(row.tokens for row in rows if row.level in levels)
