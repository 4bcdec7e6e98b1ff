"""`make bench-peers`: start all, take turns, report. `--quick` runs a handful of problems."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from infra.bench.peers import tables
from infra.bench.peers.run import Bench, Book
from infra.bench.peers.schedule import Turn, per_level, turns
from infra.bench.peers.setup import up
from infra.bench.peers.sides import (
    ALIKE,
    FIRST,
    FULL,
    MODEL,
    NOT_RUN,
    OURS,
    QUICK,
    SEED,
    TEMPERATURE,
    N,
    Side,
    sides,
)  # fmt: skip
from infra.bench.peers.summary import Record, better_peer, result, versus
from infra.bench.problems import held_out
from infra.bench.results import RESULTS, report
from infra.bench.server import settings_for
from search.registry import TECHNIQUES

LEVELS = 5
HEADLINE = 16
"""The concurrency of the RESULT line."""
MOST_IDLE = 0.05
"""Share of a core that an idle part may take; of more the output says that it disturbs the others."""


async def main(quick: bool) -> None:
    settings = settings_for(MODEL)
    sizes = QUICK if quick else FULL
    everyone = sides(frozenset(TECHNIQUES))
    problems = held_out(FIRST, per_level(sizes, LEVELS))
    out = tables.console()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"bench-peers-{time.strftime('%Y%m%dT%H%M%S')}.jsonl"
    async with up(settings) as (bench, idle):
        for name, share in idle.items():
            loud = "" if share <= MOST_IDLE else ": this disturbs the other sides"
            out.print(f"idle: {name} {100 * share:.1f} % of a core{loud}")
        with path.open("w", encoding="utf-8") as file:
            book = Book(file)
            # Connections, lazy imports and first batches; nothing of it is counted.
            warm = [Turn(side, 2, 0, tuple(held_out(0, 1)[:2])) for side in everyone]
            await take(bench, warm, None, out, "warm-up")
            await take(bench, list(turns(everyone, problems, sizes)), book, out, "measured")
    conclude(book, everyone, idle, out, path)


async def take(bench: Bench, all_turns: Sequence[Turn], book: Book | None, out: Console, name: str) -> None:
    """Run these turns one after the other, and enter them in the book."""
    columns = (TextColumn("{task.description:48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn seldom: it is this process that also serves one of the sides.
    with Progress(*columns, console=out, refresh_per_second=1) as bar:
        task = bar.add_task(name, total=sum(len(turn.problems) for turn in all_turns))
        for turn in all_turns:
            label = f"{name}: {turn.concurrency} at once, block {turn.block}, {turn.side.name}"
            bar.update(task, description=label)
            ran, tokens = await bench.run(turn, lambda: bar.advance(task))
            if book is not None:
                book.add(turn, ran, tokens)
        bar.update(task, description=name)


def conclude(
    book: Book, everyone: Sequence[Side], idle: Mapping[str, float], out: Console, path: Path
) -> None:
    """Print the tables and the RESULT line."""
    records = ordered(book.records, everyone)
    tables.records(out, records)
    at = {(r.side.name, r.concurrency): r for r in records}
    for concurrency in dict.fromkeys(r.concurrency for r in records):
        here = [r for r in records if r.concurrency == concurrency]
        compared = {OURS: tuple(r.side.name for r in here if r.side.name != OURS), **ALIKE}
        for name, others in compared.items():
            if (mine := at.get((name, concurrency))) is not None:
                rows = [versus(mine, at[other, concurrency], SEED) for other in others]
                tables.comparisons(out, mine, rows)
    tables.notes(out, records, NOT_RUN)
    out.print(f"every reply: {path}")
    mine = at[OURS, HEADLINE]
    best = better_peer(r for r in records if r.concurrency == HEADLINE)
    verdict = versus(mine, best, SEED)
    out.print(f"RESULT compares {mine.side.name} with {best.side.name}, at concurrency {HEADLINE}")
    for r in records:
        if r.concurrency == HEADLINE and r.side.system != "pondera" and r.accuracy > mine.accuracy:
            out.print(f"more accurate there: {r.side.name}, {r.accuracy:.3f} over {r.problems} problems")
    report(
        "bench-peers",
        result(verdict),
        book.rows(),
        n=N,
        temperature=TEMPERATURE,
        seed=SEED,
        peer=best.side.name,
        ours={"side": OURS, "technique": mine.side.technique, "params": dict(mine.side.params)},
        acc_gap_interval=[verdict.paired.low, verdict.paired.high],
        mcnemar_p=verdict.paired.p,
        speedup_by_block=list(verdict.speedups),
        idle=dict(idle),
        not_run=list(NOT_RUN),
        replies=path.name,
    )


def ordered(records: Sequence[Record], everyone: Sequence[Side]) -> list[Record]:
    """By concurrency, then as the table of sides has them."""
    places = {side.name: place for place, side in enumerate(everyone)}
    return sorted(records, key=lambda r: (-r.concurrency, places[r.side.name]))


async def ended_by_signal(quick: bool) -> None:
    """Like `main`, but SIGTERM ends it in order, with all that it started."""
    task = asyncio.ensure_future(main(quick))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m infra.bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a handful of problems, to see that all runs")
    given = parser.parse_args()
    asyncio.run(ended_by_signal(given.quick))
