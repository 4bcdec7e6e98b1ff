"""The process that compares answers, and the process that keeps it to its limits.

Run with its settings as one JSON argument (see `main`). It reads requests `{"id", "first", "second",
"any_order", "limit_s"}` and `{"cancel": id}` as lines, and answers each request with `{"id", "verdict",
"reason"}`; before the first it writes `{"ready": true}`. `limit_s` is in seconds on the clock.

Two processes, because sympy cannot be interrupted: one big power is a single operation of the interpreter.
The *keeper* loads everything once and calculates nothing. It forks a *calculator*, which costs milliseconds,
kills it when a request is over its time, and forks the next. Both have one thread, so forking is safe, and
math-verify runs in the main thread of its own process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import sympy  # type: ignore[import-untyped]

from orchestrator.verifiers.math_compare import Comparison
from orchestrator.verifiers.math_reading import read
from orchestrator.verifiers.math_tokens import Unreadable
from orchestrator.verifiers.math_wire import Lines, pack

_PR_SET_PDEATHSIG = 1
_FORBIDDEN = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "ctypes.dlopen")
_WARM_UP = ((r"\frac{\sqrt{2}}{2}", r"1/\sqrt{2}"), ("(x-1)(x+1)", "x^2-1"), ("x<3", r"(-\infty,3)"),
            (r"\sin^2(x_1)+\log_2(3)", r"e^{\pi}+2!"))  # fmt: skip


@dataclass
class _Calculator:
    """The keeper's side of a calculator."""

    pid: int
    requests: int
    answers: int
    answered: int = 0
    lines: Lines = field(default_factory=Lines)


class Keeper:
    """Answers requests one after another, each within its time.

    Args:
        requests: file descriptor that requests come from; its end ends the keeper.
        answers: file descriptor that answers go to.
        memory_bytes: address space a calculator may take beyond what the keeper has.
        recycle_after: answers after which a calculator is replaced.
    """

    def __init__(self, requests: int, answers: int, *, memory_bytes: int, recycle_after: int) -> None:
        self._requests = requests
        self._answers = answers
        self._memory_bytes = memory_bytes
        self._recycle_after = recycle_after
        self._lines = Lines()
        self._inbox: deque[dict[str, Any]] = deque()
        self._calculator: _Calculator | None = None

    def serve(self) -> None:
        """Answer until there are no more requests."""
        os.write(self._answers, pack({"ready": True}))
        while self._inbox or self._receive():
            message = self._inbox.popleft() if self._inbox else {}
            if "id" in message:
                verdict, reason = self._answered(message)
                os.write(self._answers, pack({"id": message["id"], "verdict": verdict, "reason": reason}))
        self._end()

    def _receive(self) -> bool:
        """Wait for requests; False at their end."""
        data = os.read(self._requests, 1 << 16)
        self._inbox.extend(self._lines.feed(data))
        return bool(data)

    def _answered(self, request: dict[str, Any]) -> tuple[str, str]:
        calculator = self._started()
        deadline = time.monotonic() + request["limit_s"]
        with contextlib.suppress(BrokenPipeError):  # it died just now, as its answer will show
            os.write(calculator.requests, pack(request))
        while True:
            left = deadline - time.monotonic()
            ready = select.select((self._requests, calculator.answers), (), (), max(0.0, left))[0]
            if calculator.answers in ready:
                return self._result(calculator)
            if self._requests in ready:
                if not self._receive():
                    self._end()
                    sys.exit(0)
                if {"cancel": request["id"]} in self._inbox:
                    self._end()
                    return "error", "cancelled"
            elif left <= 0:
                self._end()
                return "timeout", f"took longer than {request['limit_s']:g} s"

    def _result(self, calculator: _Calculator) -> tuple[str, str]:
        data = os.read(calculator.answers, 1 << 16)
        messages = calculator.lines.feed(data)
        if not messages:  # a calculator writes its answer at once
            status = self._end()
            return "error", f"the calculation ended by signal {-status}" if status < 0 else "it ended early"
        calculator.answered += 1
        if calculator.answered >= self._recycle_after or messages[0]["spent"]:
            self._end()
        return messages[0]["verdict"], messages[0]["reason"]

    def _started(self) -> _Calculator:
        if self._calculator is not None:
            ended, _ = os.waitpid(self._calculator.pid, os.WNOHANG)
            if not ended:
                return self._calculator
            self._forget()
        theirs, ours = os.pipe(), os.pipe()
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            for number in (self._requests, self._answers, theirs[1], ours[0]):
                os.close(number)
            _calculate(theirs[0], ours[1], keeper, self._memory_bytes)
        os.close(theirs[0])
        os.close(ours[1])
        self._calculator = _Calculator(pid, requests=theirs[1], answers=ours[0])
        return self._calculator

    def _end(self) -> int:
        """Kill the calculator; returns how it ended: its exit status, or minus the signal."""
        if self._calculator is None:
            return 0
        pid = self._calculator.pid
        os.kill(pid, signal.SIGKILL)  # it is ours and not yet waited for, so the id is its own
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._forget()
        return status

    def _forget(self) -> None:
        if self._calculator is not None:
            os.close(self._calculator.requests)
            os.close(self._calculator.answers)
            self._calculator = None


def verdict_of(first: str, second: str, *, any_order: bool) -> tuple[str, str, bool]:
    """Compare two answers.

    Returns:
        The verdict, why, and whether this process should not be used again.
    """
    sympy.core.random.seed(0)  # sympy looks for counterexamples at random points
    comparison = Comparison(any_order=any_order)
    try:
        same = comparison.same(read(first), read(second))
    except Unreadable as exc:
        return "error", f"one of them {exc}", False
    except Exception as exc:
        return "error", f"the calculation failed ({type(exc).__name__})", True
    if same is None:
        return "error", f"undecided: {comparison.why}", False
    return "same" if same else "different", "", False


def _calculate(requests: int, answers: int, keeper: int, memory_bytes: int) -> NoReturn:
    """The calculator: answer until killed."""
    try:
        die_with(keeper)
        sys.dont_write_bytecode = True
        _confine(memory_bytes)
        lines = Lines()
        while data := os.read(requests, 1 << 16):
            for request in lines.feed(data):
                verdict, reason, spent = verdict_of(
                    request["first"], request["second"], any_order=request["any_order"]
                )
                os.write(answers, pack({"verdict": verdict, "reason": reason, "spent": spent}))
    finally:
        os._exit(1)


def _confine(memory_bytes: int) -> None:
    """Bound this process: its memory, no files written, no output but its answers, no network or programs."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_AS, used + memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))

    def forbid(event: str, _: object) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(event)

    sys.addaudithook(forbid)


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends (prctl(2), PR_SET_PDEATHSIG).

    Raises:
        OSError: the kernel refused.
        SystemExit: the parent has ended already.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    """Serve standard input. The argument is a JSON object of `parent`, the starter's process id, and of
    `memory_bytes` and `recycle_after`."""
    settings = json.loads(sys.argv[1])
    die_with(settings.pop("parent"))
    os.umask(0o077)
    logging.disable()
    # What libraries print must not get among the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    for first, second in _WARM_UP:  # parsers and sympy fill caches and load modules, which forks then share
        verdict_of(first, second, any_order=False)
    try:
        Keeper(0, answers, **settings).serve()
    finally:
        os._exit(0)  # taking sympy down in an orderly way takes most of a second
