"""Checks an answer's code by running it against tests in the sandbox."""

from __future__ import annotations

import importlib.util
import json
import marshal
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Literal, ParamSpec

from guards.sandbox import (
    Program,
    Sandbox,
    SandboxFailed,
    SandboxLimits,
    SandboxResult,
    SandboxUnavailable,
)
from search.code_block import last_code_block
from search.extract import ThinkingMarkers
from search.verdict import Verdict

P = ParamSpec("P")

MAX_CASES = 256
MAX_TESTS_BYTES = 1 << 20
MAX_REASON = 500

_HARNESS = ("__init__", "values", "remote", "peer", "answer_side", "tests_side")


@dataclass(frozen=True, slots=True)
class IOCase:
    """What a program reads and must write.

    Args:
        stdin: its standard input.
        stdout: its standard output. White space at the end of lines and of the whole does not count.
    """

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CodeTests:
    """How code is tested: by statements or by cases.

    Args:
        asserts: Python statements that use the code's names and `assert` what must hold. They see plain data
            as copies and other objects through stand-ins. An object of the code is never equal to plain data
            and has no arithmetic with it; compare its attributes, or objects of the code with each other.
            Names that are built in always mean the built-in. What else they use they should import.
        cases: the code is a program, run once for each of them. At most `MAX_CASES`.

    Raises:
        ValueError: not just one of the two is given, or it is too large.
    """

    asserts: str = ""
    cases: tuple[IOCase, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.asserts.strip()) == bool(self.cases):
            raise ValueError("tests must have either asserts or cases")
        if len(self.cases) > MAX_CASES:
            raise ValueError(f"cases must be at most {MAX_CASES}, not {len(self.cases)}")
        size = len(self.asserts) + sum(len(case.stdin) + len(case.stdout) for case in self.cases)
        if size > MAX_TESTS_BYTES:
            raise ValueError(f"tests must have at most {MAX_TESTS_BYTES} characters, not {size}")


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """What the tests say of an answer.

    Args:
        kind: `error` when they say nothing: the sandbox is missing or failed, or the tests are no tests.
        reason: why, in words; a limit that was reached is named: `timeout`, `cpu_limit`, ...
        runs: programs that were run.
        cpu_s: processor time of all of them, in seconds.
    """

    kind: Literal["right", "wrong", "error"]
    reason: str
    runs: int = 0
    cpu_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """As a chain of verifiers takes it."""
        return Verdict(self.kind, reason=self.reason)


class CodeVerifier:
    """Runs an answer's code against tests.

    With `asserts` the code and the tests run in sandboxes of their own, with a pipe each way between them:
    the code gets the arguments of calls and gives back plain data, which is compared where it cannot reach.
    With `cases` what is expected never enters the sandbox.

    Known limits. Code can answer what tests ask in a fixed way (it can see its arguments), so tests must ask
    enough. An object of the code's own classes behaves as these say: tests that compare two such objects, or
    ask `obj.equals(3)`, trust the code's own methods. So do tests that use a name which they do not import
    and the code defines. Plain data that changes hands is copied, so `is` and changes to a list that the code
    keeps are not seen; arguments that the code changes in place are.

    Args:
        sandbox: has passed its probe; otherwise every verdict is `error`.
        thinking: the markers of the model's thinking, in which code does not count.
    """

    def __init__(self, sandbox: Sandbox, *, thinking: ThinkingMarkers | None = None) -> None:
        self._sandbox = sandbox
        self._thinking = thinking
        package = resources.files("orchestrator.verifiers.harness")
        self._harness = {
            f"harness/{name}.pyc": _compiled(package.joinpath(f"{name}.py").read_text(), f"harness/{name}.py")
            for name in _HARNESS
        }

    async def check(
        self, answer_text: str, tests: CodeTests, limits: SandboxLimits | None = None
    ) -> CodeVerdict:
        """Take the last Python code block of an answer and test it. Reaching a limit is `wrong`.

        Args:
            answer_text: the model's whole text.
            tests: what the code must pass.
            limits: of each program that is run, instead of the sandbox's.
        """
        code = last_code_block(answer_text, self._thinking)
        if code is None:
            return CodeVerdict("wrong", "no code")
        try:
            if tests.cases:
                return await self._check_cases(code, tests.cases, limits)
            return await self._check_asserts(code, tests.asserts, limits)
        except (SandboxUnavailable, SandboxFailed) as exc:
            return CodeVerdict("error", f"the sandbox failed: {exc}"[:MAX_REASON])

    async def _check_cases(
        self, code: str, cases: tuple[IOCase, ...], limits: SandboxLimits | None
    ) -> CodeVerdict:
        cpu_s = 0.0
        for number, case in enumerate(cases, 1):
            program = _within(Program, code, case.stdin)
            if program is None:
                return CodeVerdict("wrong", "the code is too long")
            result = await self._sandbox.run(program, limits=limits)
            cpu_s += result.cpu_s
            why = _fault(result)
            if not why and _lines(result.stdout) != _lines(case.stdout):
                why = "the output differs"
            if why:
                return CodeVerdict("wrong", f"case {number}: {why}"[:MAX_REASON], number, cpu_s)
        return CodeVerdict("right", f"{len(cases)} cases pass", len(cases), cpu_s)

    async def _check_asserts(self, code: str, asserts: str, limits: SandboxLimits | None) -> CodeVerdict:
        answer = _within(self._side, "answer_side", {"answer.py": code})
        if answer is None:
            return CodeVerdict("wrong", "the code is too long")
        token = secrets.token_hex(16)
        tester = self._side("tests_side", {"tests.py": asserts}, stdin=f"{token}\n")
        ran, tested = await self._sandbox.run_linked(answer, tester, limits=limits)
        kind, reason = _report(ran, tested, token)
        return CodeVerdict(kind, reason[:MAX_REASON], 2, ran.cpu_s + tested.cpu_s)

    def _side(self, name: str, files: dict[str, str | bytes], stdin: str = "") -> Program:
        source = f"from harness.{name} import main\nmain()\n"
        return Program(source, stdin, {**self._harness, **files})


def _report(
    ran: SandboxResult, tested: SandboxResult, token: str
) -> tuple[Literal["right", "wrong", "error"], str]:
    """The verdict of the program that ran the tests, with what became of the code where that says more."""
    line = tested.stdout.rstrip("\n").rpartition("\n")[2]
    if tested.succeeded and line.startswith(token):
        kind, reason = json.loads(line.removeprefix(token))
        if kind == "wrong" and ran.ended != "exited":
            return "wrong", _fault(ran)
        return kind, reason
    if ran.ended != "exited":
        return "wrong", _fault(ran)
    if tested.ended not in ("exited", "signal"):
        # What the tests were given took them too long, or too much.
        return "wrong", f"{tested.ended} in the tests"
    return "error", f"the tests gave no verdict: {_fault(tested) or 'they exited'}"


def _fault(result: SandboxResult) -> str:
    """Why a run did not end well; empty when it did."""
    if result.succeeded:
        return ""
    if result.ended == "exited":
        last = result.stderr.strip().rpartition("\n")[2]
        return f"exit status {result.exit_status}" + (f": {last}" if last else "")
    return f"signal {result.signal}" if result.ended == "signal" else result.ended


def _compiled(source: str, name: str) -> bytes:
    """A module in compiled form, which loads in a tenth of the time: PEP 552's header and the code.

    The sandbox has a copy of this very interpreter, so the form is its own.
    """
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(source, f"/code/{name}", "exec"))


def _within(make: Callable[P, Program], *args: P.args, **kwargs: P.kwargs) -> Program | None:
    """The program, None when it is too large for the sandbox."""
    try:
        return make(*args, **kwargs)
    except ValueError:
        return None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
