"""The child's end of a driver: turns come in as JSON lines, replies go out as JSON lines.

A turn is {"side", "technique", "params", "concurrency", "problems", "settings"}. Each problem is answered by
{"id", "text", "error", "seconds", "extra"}, all of them by {"done", "wall", "scores"}. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TextIO

LIMIT_S = 300.0
"""Seconds that one problem may take; then it counts as failed."""

Turn = Mapping[str, Any]
Problem = Mapping[str, Any]


class Answer:
    """What a side returned for one problem: its text, and what else is to be kept of it."""

    def __init__(self, text: str | None, extra: Mapping[str, Any] | None = None) -> None:
        self.text = text
        self.extra = dict(extra or {})


class Session:
    """One turn as a driver runs it: how to answer, and how many scores that took."""

    def __init__(self, answer: Callable[[Problem], Awaitable[Answer]]) -> None:
        self.answer = answer
        self.scores = 0


Open = Callable[[Turn], AbstractAsyncContextManager[Session]]


def serve(opened: Open) -> None:
    """Run turns until standard input ends. What libraries print goes to standard error."""
    replies, sys.stdout = sys.stdout, sys.stderr
    _write(replies, {"ready": True})
    for line in sys.stdin:
        turn = json.loads(line)
        random.seed(turn["settings"]["seed"])
        asyncio.run(_run(turn, opened, replies))


async def _run(turn: Turn, opened: Open, replies: TextIO) -> None:
    async with opened(turn) as session:
        gate = asyncio.Semaphore(turn["concurrency"])

        async def one(problem: Problem) -> None:
            async with gate:
                _write(replies, await _answered(session, problem))

        began = time.monotonic()
        await asyncio.gather(*(one(problem) for problem in turn["problems"]))
        wall = time.monotonic() - began
    _write(replies, {"done": True, "wall": wall, "scores": session.scores})


async def _answered(session: Session, problem: Problem) -> dict[str, Any]:
    began = time.monotonic()
    text: str | None = None
    error: str | None = None
    extra: dict[str, Any] = {}
    try:
        answer = await asyncio.wait_for(session.answer(problem), LIMIT_S)
        text, extra = answer.text, answer.extra
    except Exception as failure:  # whatever a peer raises is a failed request of it
        error = f"{type(failure).__name__}: {failure}"[:500]
    seconds = time.monotonic() - began
    return {"id": problem["id"], "text": text, "error": error, "seconds": seconds, "extra": extra}


def _write(replies: TextIO, what: Mapping[str, Any]) -> None:
    replies.write(json.dumps(what) + "\n")
    replies.flush()
