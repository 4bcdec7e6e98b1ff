"""A progress display that also reads well in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from orchestrator.serving import Progress as Report
from services.cli.terminal import plain_console


@contextmanager
def progress() -> Iterator[Report]:
    """Yields a function `(step, done 0..1)`: bars on a terminal, a line per finished step elsewhere."""
    console = plain_console(stderr=True)
    if not sys.stderr.isatty():
        began: dict[str, float] = {}

        def line(step: str, done: float) -> None:
            began.setdefault(step, time.monotonic())
            if done >= 1:
                console.print(f"{step}: done in {time.monotonic() - began[step]:.1f} s")

        yield line
        return
    columns = (TextColumn("{task.description:32}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as bars:
        tasks: dict[str, TaskID] = {}

        def bar(step: str, done: float) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0)
            bars.update(tasks[step], completed=done)

        yield bar
