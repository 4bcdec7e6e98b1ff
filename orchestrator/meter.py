"""Counts every token of one search once.

Charge policy: the prompt once, what the search writes into a path itself like the prompt, every generated
token once (losers too), and per judgement the verifier's own tokens (all that it was given beyond the path
that it judges, and what it decodes). A prefix that siblings share is charged once, however often an
engine had to prefill it; what the engines really prefilled is measured beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.protocol import Usage


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of one search by phase.

    Charged = prompt + generated + verifier. `after_stop` are generated tokens (among `generated`) that came
    after their call had been cancelled. `prefill_fresh` and `prefill_cached` are the engines' own figures
    over all calls; `sibling_fresh` and `sibling_cached` the same over all generations but the first.
    """

    prompt: int
    generated: int
    verifier: int
    after_stop: int
    prefill_fresh: int
    prefill_cached: int
    sibling_fresh: int
    sibling_cached: int
    first_call_cached: int

    @property
    def charged(self) -> int:
        return self.prompt + self.generated + self.verifier


class Meter:
    """Running count of one search. The prompt is charged once an engine has worked on it."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt = prompt_tokens
        self._given = 0
        self._generated = 0
        self._verifier = 0
        self._after_stop = 0
        self._fresh = 0
        self._cached = 0
        self._first: Usage | None = None
        self._sibling_fresh = 0
        self._sibling_cached = 0
        self._prompt_charged = False
        self.generate_calls = 0
        self.verifier_calls = 0
        self.failed_calls = 0

    @property
    def charged(self) -> int:
        prompt = self._prompt if self._prompt_charged else 0
        return prompt + self._given + self._generated + self._verifier

    def generated(self, tokens: int, *, cancelled: bool) -> None:
        """Tokens came; `cancelled` when their call had been cancelled before."""
        self._prompt_charged = True
        self._generated += tokens
        if cancelled:
            self._after_stop += tokens

    def given(self, tokens: int) -> None:
        """The search put in these tokens itself; they are paid like the prompt."""
        self._given += tokens

    def judged(self, tokens: int) -> None:
        """A judgement came, which cost these tokens of the verifier's own."""
        self._verifier += tokens

    def prefilled(self, usage: Usage, *, generation: bool) -> None:
        """An engine's own figure of one call's prompt."""
        self._prompt_charged = True
        fresh = usage.prompt_tokens - usage.cached_tokens
        self._cached += usage.cached_tokens
        self._fresh += fresh
        if not generation:
            return
        if self._first is None:
            self._first = usage
        else:
            self._sibling_cached += usage.cached_tokens
            self._sibling_fresh += fresh

    def count(self) -> TokenCount:
        return TokenCount(
            prompt=(self._prompt if self._prompt_charged else 0) + self._given,
            generated=self._generated,
            verifier=self._verifier,
            after_stop=self._after_stop,
            prefill_fresh=self._fresh,
            prefill_cached=self._cached,
            sibling_fresh=self._sibling_fresh,
            sibling_cached=self._sibling_cached,
            first_call_cached=self._first.cached_tokens if self._first else 0,
        )
