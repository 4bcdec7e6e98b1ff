"""Asks one thing after another, several at once, with a progress bar, or with lines where no terminal is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rich.progress import Progress

Item = TypeVar("Item")
Answer = TypeVar("Answer")
LINES = 4
"""Lines that tell how far a part is, where no bar is shown."""


async def ask_each(
    ask: Callable[[Item], Awaitable[Answer]],
    items: Sequence[Item],
    progress: Progress,
    name: str,
    *,
    at_once: int,
) -> list[Answer]:
    """The answer to each item, in the order of the items. The first exception of `ask` is raised.

    Args:
        name: of the progress bar, which goes when all is asked.
        at_once: calls of `ask` that run at the same time at most.
    """
    task = progress.add_task(name, total=len(items))
    every = max(1, len(items) // LINES)
    done = 0
    gate = asyncio.Semaphore(at_once)

    async def one(item: Item) -> Answer:
        nonlocal done
        async with gate:
            answer = await ask(item)
        progress.advance(task)
        done += 1
        if not progress.console.is_terminal and (done % every == 0 or done == len(items)):
            print(f"{name}: {done}/{len(items)}", file=sys.stderr, flush=True)
        return answer

    answers = await asyncio.gather(*(one(item) for item in items))
    progress.remove_task(task)
    return list(answers)
