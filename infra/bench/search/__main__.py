"""Every technique on the tiny reasoner's held-out problems: accuracy against total tokens, and the promises.

    python -m infra.bench.search [--quick]

Four parts, each with the problem's number as the seed: (1) the best tree technique against a majority vote of
at least the same total tokens, on levels 3 to 5, twice with different seeds; (2) the vote with its best
stop against a fixed 16 samples, on all 1,000 held-out problems; (3) random deadlines; (4) all configurations,
on a part of the problems.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from infra.bench.problems import PER_LEVEL, Problem, held_out
from infra.bench.results import report
from infra.bench.search.ask import Row, ask_all
from infra.bench.search.configs import BEST_STOP, BEST_TREE, CURVE, FIXED, MODEL, Config, N
from infra.bench.search.deadlines import Deadline, at_random_deadlines, buckets, percentile
from infra.bench.search.plot import draw
from infra.bench.search.summary import Figures, figures, flagged, paired, token_ratio
from infra.bench.server import serving, settings_for

PICTURE = Path("infra/docs/assets/accuracy-tokens.svg")
EASY, HARD, ALL = (1, 2), (3, 4, 5), (1, 2, 3, 4, 5)
CURVE_FROM, CURVE_PER_LEVEL = 60, 8
TRIAL = 4
"""Samples of the votes that tell how many tokens a sample takes."""
RUNS = 2
"""Runs of the tree and of its rival on each problem, with different seeds."""
WIDTH = 150
TIMED_PROBLEMS = 50
"""Problems that are asked with deadlines, each with four of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few problems, to see that it runs")
    asyncio.run(run(quick=parser.parse_args().quick))


async def run(*, quick: bool) -> None:
    settings = settings_for(MODEL)
    everything = list(enumerate(held_out(0, 2 if quick else PER_LEVEL)))
    first, count = (1, 1) if quick else (CURVE_FROM, CURVE_PER_LEVEL)
    wanted = {p.id for p in held_out(first, count)}
    part = [(seed, p) for seed, p in everything if p.id in wanted]
    console = Console(width=WIDTH)
    async with serving(settings) as (client, _):
        with Progress(console=console) as progress:
            hard = [(seed, p) for seed, p in everything if p.level in HARD]
            runs = [(seed + len(everything) * run, p) for run in range(RUNS) for seed, p in hard]
            tree, equal = await _tree_and_equal(client, runs, progress)
            _tell(console, [figures(rows) for rows in (tree, equal)], "levels 3 to 5")
            vote, fixed = await _alternating(client, (BEST_STOP, FIXED), everything, progress)
            _tell(console, [figures(rows) for rows in (vote, fixed)], "all held-out problems")
            late = await at_random_deadlines(client, hard[-(2 if quick else TIMED_PROBLEMS) :], progress)
            known = {rows[0].config: [r for r in rows if r.problem in wanted] for rows in (vote, fixed)}
            curve = [known.get(c.name) or await ask_all(client, c, part, progress) for c in CURVE]
    measured = [figures(rows) for rows in curve]
    _tell(console, measured, f"{len(part)} problems of all levels")
    if not quick:
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        draw(measured, PICTURE, f"tiny-reasoner, {len(part)} held-out problems, temperature 0.8")
    _conclude(console, vote, fixed, tree, equal, curve, measured, late)


async def _alternating(
    client: httpx.AsyncClient,
    configs: tuple[Config, Config],
    problems: Sequence[tuple[int, Problem]],
    progress: Progress,
    block: int = 100,
) -> tuple[list[Row], list[Row]]:
    """Both on all problems, block by block in turns, so that what the machine does hits both."""
    rows: tuple[list[Row], list[Row]] = ([], [])
    for number, start in enumerate(range(0, len(problems), block)):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            rows[side].extend(await ask_all(client, configs[side], problems[start : start + block], progress))
    return rows


async def _tree_and_equal(
    client: httpx.AsyncClient, problems: Sequence[tuple[int, Problem]], progress: Progress
) -> tuple[list[Row], list[Row]]:
    """The tree, and a plain majority vote of so many samples that it costs at least as many tokens."""
    tree = await ask_all(client, BEST_TREE, problems, progress)
    try_out = Config("majority, trial", "self_consistency", {"n": TRIAL, "width": TRIAL, "stop": "none"})
    sampled = await ask_all(client, try_out, problems[:60], progress)
    wanted = figures(tree).tokens
    per_sample = figures(sampled).generated / TRIAL
    prompt = figures(sampled).tokens - figures(sampled).generated
    # Rather a few tokens too many than the whole vote once more.
    n = max(2, ceil(1.01 * (wanted - prompt) / per_sample))
    while True:
        equal = Config(f"majority {n}", "self_consistency", {"n": n, "width": min(n, 64), "stop": "none"})
        rows = await ask_all(client, equal, problems, progress)
        if figures(rows).tokens >= wanted:
            return tree, rows
        # A vote that is decided ends early, so that it may take more samples to spend as much.
        n += max(1, ceil((wanted - figures(rows).tokens) / per_sample))


def _tell(console: Console, measured: Sequence[Figures], title: str) -> None:
    table = Table(title=title)
    columns = (
        "configuration",
        "problems",
        "right %",
        "95 %",
        "tokens",
        "verifier",
        "s",
        "after stop",
        "hits",
    )
    for column in (*columns, *(f"L{level}" for level in ALL)):
        table.add_column(column, justify="left" if column == "configuration" else "right")
    for f in sorted(measured, key=lambda f: f.tokens):
        levels = [f"{100 * f.by_level[level]:.0f}" if level in f.by_level else "" for level in ALL]
        table.add_row(
            f.config, str(f.problems), f"{100 * f.accuracy:.1f}", f"{100 * f.low:.0f}-{100 * f.high:.0f}",
            f"{f.tokens:.0f}", f"{f.verifier:.0f}", f"{f.seconds:.2f}", f"{f.after_stop:.4f}",
            f"{f.prefix_hit:.3f}", *levels,
        )  # fmt: skip
    console.print(table)


def _conclude(
    console: Console,
    vote: Sequence[Row],
    fixed: Sequence[Row],
    tree: Sequence[Row],
    equal: Sequence[Row],
    curve: Sequence[Sequence[Row]],
    measured: Sequence[Figures],
    late: Sequence[Deadline],
) -> None:
    gap, gain = paired(vote, fixed), paired(tree, equal)
    whole = {rows[0].config for rows in (vote, fixed)}
    # The two plain majorities have next to nothing to stop, and would only make the shares look better.
    every = [*vote, *tree]
    every += [row for rows in curve if rows[0].config not in whole for row in rows]
    misses = [d.late_ms for d in late]
    console.print(
        f"vote against fixed {N}: {gap.difference:+.4f} ({gap.low:+.4f} to {gap.high:+.4f}), "
        f"{gap.won} won, {gap.lost} lost, p {gap.p:.3g}"
    )
    console.print(
        f"{tree[0].config} against {equal[0].config}, levels 3 to 5: {gain.difference:+.4f} "
        f"({gain.low:+.4f} to {gain.high:+.4f}), {gain.won} won, {gain.lost} lost, p {gain.p:.3g}"
    )
    for longest, count, answered, right in buckets(late):
        console.print(f"deadlines up to {longest} ms ({count}): {answered:.2f} answered, {right:.2f} right")
    greedy = next(f for f in measured if f.config == "single, greedy")
    console.print(
        "worse than one greedy pass at more tokens: " + (", ".join(flagged(measured, greedy)) or "none")
    )
    cached, fresh = sum(r.cached for r in every), sum(r.fresh for r in every)
    report(
        "bench-search",
        {
            "vote_acc_gap": gap.difference,
            "vote_token_ratio": token_ratio(vote, fixed, ALL),
            "easy_token_ratio": token_ratio(vote, fixed, EASY),
            "tree_gain": gain.difference,
            "tree_gain_low": gain.low,
            "after_stop": sum(r.after_stop for r in every) / sum(r.generated for r in every),
            "prefix_hit": cached / (cached + fresh),
            "deadline_miss_p99_ms": percentile(misses, 0.99),
        },
        [*(asdict(row) for row in (*fixed, *equal, *every)), *(asdict(d) for d in late)],
        vote=asdict(gap),
        tree=asdict(gain),
        equal=equal[0].config,
        buckets=buckets(late),
    )


if __name__ == "__main__":
    main()
