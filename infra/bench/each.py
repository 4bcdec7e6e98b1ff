"""Asks one thing after another, several at once, with a progress bar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rich.progress import Progress

Item = TypeVar("Item")
Answer = TypeVar("Answer")


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
    gate = asyncio.Semaphore(at_once)

    async def one(item: Item) -> Answer:
        async with gate:
            answer = await ask(item)
        progress.advance(task)
        return answer

    answers = await asyncio.gather(*(one(item) for item in items))
    progress.remove_task(task)
    return list(answers)
