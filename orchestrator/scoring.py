"""A process reward read off label tokens: how a path is put to the verifier, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessReward:
    """The generative process-reward form of a model, in its own token ids.

    The path so far, without trailing `strip_ids`, is followed by `suffix_ids`; the score is the probability
    of `right_id` against `wrong_id` as the next token.
    """

    suffix_ids: tuple[int, ...]
    right_id: int
    wrong_id: int
    strip_ids: frozenset[int]

    @property
    def tokens(self) -> int:
        """Charged tokens of one score: the suffix and the one label token that is decoded."""
        return len(self.suffix_ids) + 1

    def input_ids(self, path_ids: tuple[int, ...], prompt_tokens: int) -> tuple[int, ...]:
        """Token ids to score; the prompt itself is never stripped."""
        end = len(path_ids)
        while end > prompt_tokens and path_ids[end - 1] in self.strip_ids:
            end -= 1
        return path_ids[:end] + self.suffix_ids
