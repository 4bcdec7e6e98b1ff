"""Mathematical equality of answers, calculated in processes of their own that are killed when they take long.

math-verify keeps its time limits by SIGALRM, which works in a main thread only; used in a server's loop or
threads it gives wrong verdicts. Here it runs in the main thread of another process (`math_worker`), so the
verdict is the same wherever it is asked for. An expression costs its time limit at the most, and no capacity.

`same` and `different` are shown, not presumed. What is not read as mathematics, can be meant in several ways
or is not decided is an `error` with its reason: it never joins two votes, and never passes for `wrong`.
"""

from __future__ import annotations

import asyncio
from math import inf

from orchestrator.verifiers.math_process import MathLimits, MathProcess, MathVerdict
from search.equivalence import answer_key, is_number
from search.extract import final_answer


class MathPool:
    """Compares answers in at most `size` worker processes, each started when it is first needed.

    It belongs to the event loop that first uses it.

    Args:
        size: processes at the most, 1..64. Each takes one core while it calculates.
        limits: of each comparison and process.
        most_chars: longer answers are refused, 1..2,000.
        most_waiting: comparisons that may wait for a process; one more is refused, 0..100,000.

    Raises:
        ValueError: a value is out of its range.
    """

    def __init__(
        self,
        *,
        size: int = 1,
        limits: MathLimits | None = None,
        most_chars: int = 1000,
        most_waiting: int = 64,
    ) -> None:
        for name, value, low, high in (
            ("size", size, 1, 64),
            ("most_chars", most_chars, 1, 2000),
            ("most_waiting", most_waiting, 0, 100_000),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} must be a whole number in {low}..{high}, not {value!r}")
        self._most_chars = most_chars
        self._most_waiting = most_waiting
        self._processes = [MathProcess(limits or MathLimits()) for _ in range(size)]
        # Last in, first out: under a light load one process does all, and the others are never started.
        self._idle: asyncio.LifoQueue[MathProcess] = asyncio.LifoQueue()
        for process in reversed(self._processes):
            self._idle.put_nowait(process)
        self._waiting = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def equal(self, first: str, second: str, *, limit_s: float | None = None) -> MathVerdict:
        """Whether two answers to one question are the same; `equal(a, b)` is `equal(b, a)`.

        For grouping votes: lists without brackets in another order are undecided. Units and percent belong to
        the answer and are not converted.

        Args:
            limit_s: seconds on the clock that the calculation may take, if less than the pool's own limit.

        Raises:
            RuntimeError: the pool belongs to another event loop.
            ValueError: `limit_s` is not above 0.
        """
        return await self._verdict(first, second, limit_s, any_order=False)

    async def grade(self, answer: str, reference: str, *, limit_s: float | None = None) -> MathVerdict:
        """Whether an answer is the reference's. As `equal`, but a list without brackets may be in any order.

        Args:
            limit_s: seconds on the clock that the calculation may take, if less than the pool's own limit.

        Raises:
            RuntimeError: the pool belongs to another event loop.
            ValueError: `limit_s` is not above 0.
        """
        return await self._verdict(answer, reference, limit_s, any_order=True)

    async def close(self) -> None:
        """End all processes and wait until they are gone. What is asked later, or waits, is an `error`."""
        self._closed = True
        await asyncio.gather(*(process.close() for process in self._processes))

    async def _verdict(
        self, first: str, second: str, limit_s: float | None, *, any_order: bool
    ) -> MathVerdict:
        if limit_s is not None and not limit_s > 0:
            raise ValueError(f"limit_s must be a number of seconds above 0, not {limit_s!r}")
        if max(len(first), len(second)) > self._most_chars:
            return MathVerdict("error", f"an answer is longer than {self._most_chars} characters")
        first, second = _unboxed(first), _unboxed(second)
        keys = answer_key(first), answer_key(second)
        if "" in keys:
            return MathVerdict("error", "an answer is empty")
        if keys[0] == keys[1]:
            return MathVerdict("same")
        if is_number(keys[0]) and is_number(keys[1]):
            return MathVerdict("different")
        # One order for both directions, so that the verdict is the same in both.
        first, second = sorted((first, second))
        return await self._calculated(first, second, inf if limit_s is None else limit_s, any_order=any_order)

    async def _calculated(self, first: str, second: str, limit_s: float, *, any_order: bool) -> MathVerdict:
        if self._loop not in (None, asyncio.get_running_loop()):
            raise RuntimeError("a pool of mathematics processes is used by one event loop only")
        self._loop = asyncio.get_running_loop()
        if self._idle.empty() and self._waiting >= self._most_waiting:
            return MathVerdict("error", "busy")
        self._waiting += 1
        try:
            process = await self._idle.get()
        finally:
            self._waiting -= 1
        try:
            if self._closed:
                return MathVerdict("error", "closed")
            return await process.ask(first, second, any_order=any_order, limit_s=limit_s)
        finally:
            self._idle.put_nowait(process)


def _unboxed(answer: str) -> str:
    r"""What is in the last `\boxed{}` of an answer that has one."""
    return (final_answer(answer) or "") if r"\boxed" in answer else answer
