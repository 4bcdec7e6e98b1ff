"""One whole sample of a search, drawn as a chain of tree nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from search.extract import ThinkingMarkers
from search.tool_calls import ToolMarkers

ANSWER_RESERVE = 64
"""Tokens kept for the answer of a sample whose thinking is closed by force."""


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """What bounds every sample of a search.

    Args:
        max_new_tokens: the most tokens of one sample, its thinking included.
        context_tokens: the most tokens of one path, prompt and output together.
        thinking: how the model marks its thinking; None if it does not think.
        whole: the answer of every sample is drawn by one `Generate` of its full length, or waits for room.
            For output that the engine constrains or penalises by what the same call has written before.
        json_answer: the answer is a JSON value (`response_format`), and answers are the same when the values
            are.
        step_ends: strings that end a step of reasoning.
        step_tokens: the most tokens of one step.
        tool_calls: how the model marks a call of a tool; None where it has no tools.
        think_tokens: the most tokens of thinking; it is closed by force then. None for what the sample has.
        think_again: how often a thinking section that ends is made to go on.
        equate: answers whose normal forms differ may be put to `Equate`.

    Raises:
        ValueError: a limit is below 1, or a step end is empty.
    """

    max_new_tokens: int
    context_tokens: int
    thinking: ThinkingMarkers | None = None
    whole: bool = False
    json_answer: bool = False
    step_ends: tuple[str, ...] = ("\n\n",)
    step_tokens: int = 512
    tool_calls: ToolMarkers | None = None
    think_tokens: int | None = None
    think_again: int = 0
    equate: bool = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "context_tokens", "step_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, not {getattr(self, name)}")
        if self.think_tokens is not None and self.think_tokens < 1:
            raise ValueError(f"think_tokens must be >= 1, not {self.think_tokens}")
        if self.think_again < 0:
            raise ValueError(f"think_again must be >= 0, not {self.think_again}")
        if not self.step_ends or not all(self.step_ends):
            raise ValueError("step_ends must name at least one string, and none that is empty")


class State(StrEnum):
    """Where a sample stands. `waiting`: its slice of tokens is used up and it wants to go on.
    `filtered`: the technique ended it."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETE = "complete"
    TRUNCATED = "truncated"
    FAILED = "failed"
    STOPPED = "stopped"
    FILTERED = "filtered"


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
        tokens: tokens on its path from the root of the search, those the search wrote itself included.
        generated: those of them that the model wrote.
        chars: characters of its text.
        state, reason: where it stands, and why when it did not complete.
        awake: whether its KV is wanted; one that waits may be put to sleep to make room for others, and is
            asleep after a release.
        has_text: it is complete and its text is not blank.
        visible: it is complete and has text outside thinking.
        answer, key: set when it is complete and wrote a final answer that is not empty.
        scoring, score, score_reason: the verifier's score, and why it failed.
        thought: tokens of its thinking, while that was under a budget.
        continued: how often its thinking was made to go on.
        again: it is to go on with the phrase for that.
        calls_tools: its answer is calls of tools.
        verdict: of the check, where one was asked for.
    """

    index: int
    nodes: list[int] = field(default_factory=list)
    tokens: int = 0
    generated: int = 0
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
    thought: int = 0
    continued: int = 0
    again: bool = False
    calls_tools: bool = False
    verdict: str | None = None
