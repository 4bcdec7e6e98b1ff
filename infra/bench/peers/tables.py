"""The tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from infra.bench.peers.summary import Record, Versus, quantile
from infra.bench.stats import wilson

COUNTING = """\
Counting. work = tokens decoded (samples, and ratings where a peer rates by generating) + 2 per score of the
process reward model (its suffix and its label); it is the figure that is compared. Prompt tokens stand beside
it as the engine was really asked: fresh = prefilled, cached = found in the prefix cache, which is cold at the
start of every turn. A peer's tokens are its engine's own counters, requests that the peer dropped included;
ours are our receipts. What else OptiLLM's bon puts into its rating prompts is not in work, in its favour.
Accuracy: the text that a side returned, read and compared by the same two functions; an error is wrong."""


def console() -> Console:
    plain = Console()
    return plain if plain.is_terminal else Console(width=160)


def records(out: Console, rows: Sequence[Record]) -> None:
    """One table per concurrency."""
    for concurrency in dict.fromkeys(r.concurrency for r in rows):
        table = Table(title=f"concurrency {concurrency}, per problem", title_justify="left")
        table.add_column("side", no_wrap=True)
        for name in ("problems", "right", "95 %", "work", "fresh", "cached", "wall s", "p50 s", "p95 s"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("no answer", justify="right")
        table.add_column("failed", justify="right")
        for r in (r for r in rows if r.concurrency == concurrency):
            low, high = wilson(r.right, r.problems)
            times = [v.seconds for v in r.verdicts]
            table.add_row(
                r.side.name,
                str(r.problems),
                f"{r.accuracy:.3f}",
                f"{low:.2f} to {high:.2f}",
                f"{r.work:.0f}",
                f"{r.tokens.fresh / r.problems:.0f}",
                f"{r.tokens.cached / r.problems:.0f}",
                f"{r.pace:.2f}",
                f"{quantile(times, 0.5):.2f}",
                f"{quantile(times, 0.95):.2f}",
                str(sum(not v.answered for v in r.verdicts)),
                str(r.failed),
            )
        out.print(table)


def comparisons(out: Console, ours: Record, rows: Sequence[Versus]) -> None:
    """Ours against each other side on shared problems."""
    title = f"{ours.side.name} against each, concurrency {ours.concurrency}"
    table = Table(title=title, title_justify="left")
    table.add_column("other", no_wrap=True)
    for name in (
        "shared",
        "accuracy, ours minus theirs",
        "won/lost",
        "McNemar p",
        "speedup",
        "by block",
        "work",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        p = row.paired
        table.add_row(
            row.other.side.name,
            str(p.problems),
            f"{p.difference:+.3f} ({p.low:+.3f} to {p.high:+.3f})",
            f"{p.won}/{p.lost}",
            f"{p.p:.3f}",
            f"{row.speedup:.2f}",
            f"{min(row.speedups):.2f} to {max(row.speedups):.2f}",
            f"{row.tokens:.3f}",
        )
    out.print(table)
    out.print(
        "Accuracy: percentile bootstrap over shared problems, 95 %; p by McNemar's exact test. Speedup and"
    )
    out.print("work are per problem; a side with fewer problems had them of the same mix of levels.")


def notes(out: Console, rows: Sequence[Record], not_run: Sequence[str]) -> None:
    for side in dict.fromkeys(r.side.name for r in rows):
        note = next(r.side.note for r in rows if r.side.name == side)
        if note:
            out.print(f"{side}: {note}")
    for line in not_run:
        out.print(line)
    out.print(COUNTING)
