"""One whole sample of a search, drawn as a chain of tree nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from search.extract import ThinkingMarkers


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """What bounds every sample of a search.

    Args:
        max_new_tokens: the most tokens of one sample, its thinking included.
        context_tokens: the most tokens of one path, prompt and output together.
        thinking: how the model marks its thinking; None if it does not think.
        whole: every sample is drawn by one `Generate` of its full length, or waits for room. For output
            that the engine constrains or penalises by what the same call has written before.

    Raises:
        ValueError: a limit is below 1.
    """

    max_new_tokens: int
    context_tokens: int
    thinking: ThinkingMarkers | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "context_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, not {getattr(self, name)}")


class State(StrEnum):
    """Where a sample stands. `waiting`: its slice of tokens is used up and it wants to go on."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETE = "complete"
    TRUNCATED = "truncated"
    FAILED = "failed"
    STOPPED = "stopped"


class Scoring(StrEnum):
    """Where the score of a sample stands."""

    NONE = "none"
    WANTED = "wanted"
    ASKED = "asked"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Sample:
    """One sample.

    Args:
        index: its number, from 0 in the order of starting.
        nodes: its chain of nodes, the first one under the root.
        tokens: tokens it has generated.
        chars: characters of its text.
        state, reason: where it stands, and why when it did not complete.
        awake: whether its KV is wanted; one that waits may be put to sleep to make room for others, and is
            asleep after a release.
        has_text: it is complete and its text is not blank.
        visible: it is complete and has text outside thinking.
        answer, key: set when it is complete and wrote a final answer that is not empty.
        scoring, score, score_reason: the verifier's score, and why it failed.
    """

    index: int
    nodes: list[int] = field(default_factory=list)
    tokens: int = 0
    chars: int = 0
    state: State = State.RUNNING
    reason: str = ""
    awake: bool = True
    has_text: bool = False
    visible: bool = False
    answer: str | None = None
    key: str | None = None
    scoring: Scoring = Scoring.NONE
    score: float | None = None
    score_reason: str = ""
