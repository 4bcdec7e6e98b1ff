"""In which pieces a path is written: thinking, answer, steps.

A piece ends where the next one needs other settings or a decision: where thinking ends (its budget, and the
grammar that holds for the answer alone), and where a step of reasoning ends. A step never ends within a
fenced block of code or within a thinking section.

Sources: forced ends and continuations of thinking are budget forcing, Muennighoff et al., "s1: Simple
test-time scaling", 2025 (arXiv 2501.19393), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.extract import is_thinking, visible_text
from search.ground import Phrase
from search.sample import ANSWER_RESERVE, SampleLimits

THINK_OPEN, THINK_CLOSE, THINK_AGAIN = "think_open", "think_close", "think_again"
FENCE = "```"


@dataclass(frozen=True, slots=True)
class Segment:
    """The next piece of a path.

    Args:
        phrase: what the search writes first, by its name in the ground's phrases; None for nothing.
        until: strings that end it.
        max_tokens: the most tokens of it, those of the phrase left out.
        whole: it is one call or none.
        constrained: the request's grammar and penalties hold.
        thinking: it is a piece of thinking, and counts against its budget.
    """

    phrase: str | None
    until: tuple[str, ...]
    max_tokens: int
    whole: bool
    constrained: bool
    thinking: bool


class Segments:
    """Decides the pieces of paths.

    Args:
        limits: bounds of every sample.
        phrases: what may be written by force; without the closing phrase thinking is never closed.
        sample_tokens: the most tokens of one path.
        steps: whether paths are written step by step.

    Raises:
        ValueError: the closing phrase does not close thinking.
    """

    def __init__(
        self, limits: SampleLimits, phrases: Mapping[str, Phrase], sample_tokens: int, *, steps: bool = False
    ) -> None:
        close = phrases.get(THINK_CLOSE)
        if limits.thinking is not None and close is not None and limits.thinking.close not in close.text:
            raise ValueError(f"the phrase {THINK_CLOSE!r} must contain {limits.thinking.close!r}")
        self._limits = limits
        self._phrases = phrases
        self._tokens = sample_tokens
        # What the engine constrains is one piece: it cannot be cut into steps.
        self._steps = steps and not limits.whole

    def next(self, text: str, tokens: int, thought: int, *, step_tokens: int = 0) -> Segment | None:
        """The piece that follows.

        Args:
            text: of the path so far, from the root of the search.
            tokens: on that path.
            thought: those of them that were written under a thinking budget.
            step_tokens: of the step under way.

        Returns:
            None when the path has no tokens left.
        """
        left = self._tokens - tokens
        if left < 1:
            return None
        markers = self._limits.thinking
        if markers is None:
            return self._answer(None, text, left, step_tokens)
        inside = is_thinking(text, markers)
        if inside:
            budget = self._thinking_left(left, thought)
            if budget > 0:
                return Segment(None, (markers.close,), budget, False, False, True)
            close = self._phrases.get(THINK_CLOSE)
            if close is not None and left > len(close.token_ids):
                # What the step holds so far is thinking; its own tokens begin here.
                return self._answer(THINK_CLOSE, text, left - len(close.token_ids), 0)
            return Segment(None, (markers.close,), left, False, False, True)
        if text.strip():
            return self._answer(None, text, left, step_tokens)
        return self._first(markers.close, text, left, thought, step_tokens)

    def _first(self, close: str, text: str, left: int, thought: int, step_tokens: int) -> Segment:
        """The first piece of a path that the template has not begun with thinking.

        Whether the model thinks is its own choice. Only where a grammar would forbid it from the first token
        on, thinking is opened for it.
        """
        budget = self._thinking_left(left, thought)
        if self._limits.whole:
            opening = self._phrases.get(THINK_OPEN)
            if opening is None or budget <= len(opening.token_ids):
                return self._answer(None, text, left, step_tokens)
            return Segment(THINK_OPEN, (close,), budget - len(opening.token_ids), False, False, True)
        if not self._is_watched() or budget < 1:
            return self._answer(None, text, left, step_tokens)
        if not self._steps:
            return Segment(None, (close,), budget, False, True, True)
        most = max(1, min(budget, self._limits.step_tokens - step_tokens))
        return Segment(None, (close, *self._limits.step_ends), most, False, True, True)

    def ends_step(self, text: str, matched: str | None, step_tokens: int) -> bool:
        """Whether a step ends here.

        Args:
            text: of the path.
            matched: the string of `until` at which the last piece ended; None where it ended by length.
            step_tokens: of the step.
        """
        markers = self._limits.thinking
        if markers is not None and is_thinking(text, markers):
            return False
        if markers is not None and matched == markers.close:
            return True
        full = step_tokens >= self._limits.step_tokens
        return (full or matched in self._limits.step_ends) and not self._in_fence(text)

    def may_think_again(self, text: str, tokens: int, thought: int, continued: int) -> bool:
        """Whether a thinking section that ended is to go on: it is wanted, and its budget allows for it.

        Args:
            text, tokens, thought: as in `next`, without the closing marker.
            continued: how often it was made to go on before.
        """
        markers, phrase = self._limits.thinking, self._phrases.get(THINK_AGAIN)
        return (
            markers is not None
            and phrase is not None
            and continued < self._limits.think_again
            and is_thinking(text, markers)
            and self._thinking_left(self._tokens - tokens, thought) > len(phrase.token_ids)
        )

    def _is_watched(self) -> bool:
        """Whether the end of thinking matters: for its budget, or for what comes after it."""
        limits = self._limits
        bounded = limits.think_tokens is not None or limits.think_again > 0
        return bounded or self._steps or limits.whole or THINK_CLOSE in self._phrases

    def _thinking_left(self, left: int, thought: int) -> int:
        if THINK_CLOSE in self._phrases:
            left -= min(ANSWER_RESERVE, self._tokens // 2) + len(self._phrases[THINK_CLOSE].token_ids)
        cap = self._limits.think_tokens
        return left if cap is None else min(left, cap - thought)

    def _answer(self, phrase: str | None, text: str, left: int, step_tokens: int) -> Segment:
        if not self._steps:
            return Segment(phrase, (), left, self._limits.whole, True, False)
        if self._in_fence(text):
            return Segment(phrase, (FENCE,), left, False, True, False)
        most = max(1, min(left, self._limits.step_tokens - step_tokens))
        return Segment(phrase, self._limits.step_ends, most, False, True, False)

    def _in_fence(self, text: str) -> bool:
        # A block that was left open in thinking is none of the answer's.
        return visible_text(text, self._limits.thinking).count(FENCE) % 2 == 1
