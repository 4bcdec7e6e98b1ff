"""Tests of an answer's code, as a verifier."""

from __future__ import annotations

from guards.sandbox import Sandbox, SandboxUnavailable
from orchestrator.request import VerifierWish
from orchestrator.verifiers.code import CodeTests, CodeVerifier, IOCase
from orchestrator.verifiers.port import Checker, Judgement, Subject
from orchestrator.verifiers.text_checks import CheckRefused
from search.extract import ThinkingMarkers


class CodeTool:
    """Makes checkers that run the code of an answer in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._missing: str | None = "the sandbox is still being checked"

    async def prepare(self) -> str | None:
        """Check that the sandbox isolates as it must. Returns why nothing will be run, or None."""
        try:
            await self._sandbox.probe()
        except SandboxUnavailable as e:
            self._missing = str(e)
        else:
            self._missing = None
        return self._missing

    def __call__(self, wish: VerifierWish, thinking: ThinkingMarkers | None) -> Checker:
        """A checker of the tests that were given.

        Raises:
            CheckRefused: there are none, or of both kinds, or too many; or nothing can be run safely here.
        """
        if self._missing is not None:
            raise CheckRefused(f"code cannot be run safely here: {self._missing}", "kind")
        try:
            tests = CodeTests(wish.asserts or "", tuple(IOCase(*case) for case in wish.cases))
        except ValueError as e:
            raise CheckRefused(str(e), "cases" if wish.cases else "asserts") from None
        return _CodeCheck(CodeVerifier(self._sandbox, thinking=thinking), tests)


class _CodeCheck:
    name = "code"

    def __init__(self, verifier: CodeVerifier, tests: CodeTests) -> None:
        self._verifier = verifier
        self._tests = tests

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return 0

    async def check(self, subject: Subject) -> Judgement:
        verdict = await self._verifier.check(subject.text, self._tests)
        return Judgement(verdict=verdict.kind, reason=verdict.reason)
