"""How a path is put to a process reward, whatever reads it."""

from __future__ import annotations


def judged_prefix(
    path_ids: tuple[int, ...],
    prompt_tokens: int,
    strip_ids: frozenset[int],
    suffix_ids: tuple[int, ...],
) -> tuple[int, ...]:
    """A path without what it ends with of `strip_ids`, and `suffix_ids` after it.

    Args:
        path_ids: from the first token of the prompt.
        prompt_tokens: how many of them are the prompt's, which is never stripped.
    """
    end = len(path_ids)
    while end > prompt_tokens and path_ids[end - 1] in strip_ids:
        end -= 1
    return path_ids[:end] + suffix_ids
