"""The ask/tell contract: what a search is asked, what it is told, what it answers.

A search is a plain object that never waits. The runner asks it what to start within a `Room`,
tells it what came back, in any order, and may stop at any moment and take `best()`.
Nothing here reads a clock, waits or does I/O; time, tokens and room are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from search.tree import Tree

CallId: TypeAlias = int
NodeId: TypeAlias = int


@dataclass(frozen=True, slots=True)
class Room:
    """What may be started now, beyond all that is already in flight.

    Args:
        slots: how many more calls may run at once.
        tokens: charged tokens still free; calls in flight are already subtracted at their worst case.
        kv_tokens: KV-cache tokens the search's live tree may still grow by, in-flight growth subtracted.
        seconds: time left before the deadline; None when there is none.
    """

    slots: int
    tokens: int
    kv_tokens: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue the path that ends at `parent` into the new node `node`. Worst case: `max_new_tokens`."""

    id: CallId
    parent: NodeId
    node: NodeId
    max_new_tokens: int
    seed: int
    temperature: float | None = None
    """None: the request's own temperature."""


@dataclass(frozen=True, slots=True)
class Score:
    """How promising is the path that ends at `node`? Worst case: `Costs.score_tokens`."""

    id: CallId
    node: NodeId


@dataclass(frozen=True, slots=True)
class Check:
    """Is the finished answer on the path that ends at `node` right?"""

    id: CallId
    node: NodeId


Call: TypeAlias = Generate | Score | Check


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of a running `Generate`, and the text they add."""

    call: CallId
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] = ()
    """One natural-log probability per token, or empty when they were not asked for."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A `Generate` ended; all its tokens have come as chunks.

    `stop`: the model ended its turn or met a stop string. `length`: it used up `max_new_tokens`.
    `context`: the model's context is full, so that the path cannot be continued.
    """

    call: CallId
    finish: Literal["stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Scored:
    """A `Score` came back; `score` lies in 0..1."""

    call: CallId
    score: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A `Check` came back. `score` is set with the verdict `unsure`."""

    call: CallId
    verdict: Literal["right", "wrong", "unsure", "error"]
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A call failed: the engine was lost, refused or timed out. Its chunks so far stay in the tree."""

    call: CallId
    reason: str


Event: TypeAlias = Chunk | Generated | Scored | Checked | Failed


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer a search would give if it had to stop now.

    Args:
        node: the last node of the path; its text is `tree.path_text(node)`.
        answer: the extracted final answer as the model wrote it, or None if it wrote none.
        key: the normal form by which answers are grouped, or None.
        complete: the model ended by itself. False marks a text cut short; it never has an answer.
        score: the verifier's score of this path, or None.
        support: share (0..1) of the vote or of the score mass behind `key`; 1.0 where there is no vote.
        tie: another answer had the same standing and this one was taken by the deterministic rule.
    """

    node: NodeId
    answer: str | None
    key: str | None
    complete: bool
    score: float | None = None
    support: float = 1.0
    tie: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a search, for the receipt.

    `fate`: running | chosen | agreed (same answer as the chosen one) | outvoted | outscored | stopped
    (cut off when the search had decided) | no_answer | truncated | failed.
    """

    nodes: tuple[NodeId, ...]
    tokens: int
    answer: str | None
    score: float | None
    fate: str
    reason: str


@dataclass(frozen=True, slots=True)
class Costs:
    """What calls other than `Generate` cost, in charged tokens, known before they start."""

    score_tokens: int = 0
    check_tokens: int = 0


class Search(Protocol):
    """A test-time-compute technique as an ask/tell object."""

    @property
    def tree(self) -> Tree: ...

    @property
    def finished(self) -> bool:
        """Nothing more will be asked; calls still in flight (if any) have been returned for cancelling."""

    @property
    def stop_reason(self) -> str | None:
        """Why it finished, as a short snake_case word (`decided`, `all_done`, …); None while running."""

    def ask(self, room: Room) -> list[Call]:
        """Calls to start now: at most `room.slots`, and of worst cases summing to at most `room.tokens`.

        The growth of `tree.live_tokens` by the ask itself (what it wakes, less what it puts to sleep) and
        the worst cases of its `Generate` calls are together at most `room.kv_tokens`.

        An empty list with nothing in flight and `finished` false means that the room is too small.
        """

    def tell(self, event: Event) -> list[CallId]:
        """Take in one event; returns calls to cancel. Events of unknown or cancelled calls are ignored."""

    def release(self) -> None:
        """The engine may drop all KV of this search: nothing is running.

        `tree.live_tokens` is 0 then. Later calls prefill their paths again, and the ask that makes them
        counts these, the prompt included, as growth.

        Raises:
            RuntimeError: calls are in flight.
        """

    def best(self) -> Candidate | None:
        """The answer if the search had to stop now; None when there is not one token of any."""

    def gain(self) -> float:
        """Expected improvement of the answer per further token, >= 0; 0 when finished."""

    def branches(self) -> Sequence[Branch]:
        """All branches tried so far, in the order they were started."""
