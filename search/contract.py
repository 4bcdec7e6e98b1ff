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
    """Continue the path that ends at `parent` into the new node `node`.

    Worst case: `given_tokens` + `max_new_tokens`.

    Args:
        given_tokens: tokens at the end of the parent's path that the search wrote itself and that no earlier
            call has paid for; they are charged with this one, as prompt. Their KV is in the live tree.
        temperature: None is the request's own.
        until: strings that end the generation beside the request's own stop strings. The one that is met
            stays in the text; the call then ends with `step`.
        logprobs: 0 for none; 1: every chunk has its tokens' log-probabilities; k > 1: and the mean of the k
            likeliest ones too.
        constrained: whether the request's grammar (JSON schema, regex) and penalties hold for this call.
        tier: the engine tier that runs it, 0 being the request's own model.
    """

    id: CallId
    parent: NodeId
    node: NodeId
    max_new_tokens: int
    seed: int
    given_tokens: int = 0
    temperature: float | None = None
    until: tuple[str, ...] = ()
    logprobs: int = 0
    constrained: bool = True
    tier: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """How promising is the path that ends at `node`? Worst case: `Costs.score_tokens`.

    `begin`: what is judged starts after this node.
    """

    id: CallId
    node: NodeId
    begin: NodeId = 0


@dataclass(frozen=True, slots=True)
class Check:
    """Is the finished answer on the path that ends at `node` right? Worst case: `Costs.check_tokens`."""

    id: CallId
    node: NodeId
    begin: NodeId = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """Which of two finished answers is better? Worst case: `Costs.compare_tokens`."""

    id: CallId
    node: NodeId
    other: NodeId
    begin: NodeId = 0


@dataclass(frozen=True, slots=True)
class Equate:
    """Are two answers, neither of which is a plain number, mathematically the same? Costs no tokens."""

    id: CallId
    answer: str
    other: str


Call: TypeAlias = Generate | Score | Check | Compare | Equate


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of a running `Generate`, and the text they add."""

    call: CallId
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] = ()
    """One natural-log probability per token, or empty when they were not asked for."""
    top_means: tuple[float, ...] = ()
    """Per token, the mean log-probability of the likeliest tokens at its place, where asked for."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A `Generate` ended; all its tokens have come as chunks.

    Args:
        finish: `stop`: the model ended its turn or met a stop string of the request. `step`: it met one of
            the call's `until`. `length`: it used up `max_new_tokens`. `context`: the model's context is full,
            so that the path cannot be continued.
        matched: the string of `until` that was met.
        matched_tokens: the last tokens of the node that are just that string; 0 when it does not begin at
            a token of its own.
    """

    call: CallId
    finish: Literal["stop", "step", "length", "context"]
    matched: str | None = None
    matched_tokens: int = 0


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
class Compared:
    """A `Compare` came back: the probability (0..1) that `node` is better than `other`."""

    call: CallId
    first_better: float


@dataclass(frozen=True, slots=True)
class Equated:
    """An `Equate` came back; None when nothing could be said (an error, or the time was over)."""

    call: CallId
    same: bool | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A call failed: the engine was lost, refused or timed out. Its chunks so far stay in the tree."""

    call: CallId
    reason: str


Event: TypeAlias = Chunk | Generated | Scored | Checked | Compared | Equated | Failed


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer a search would give if it had to stop now.

    Args:
        node: the last node of the path; its text is `tree.path_text(node, begin)`.
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
    begin: NodeId = 0
    """The answer's text starts after this node: the root, or a later turn of the same conversation."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a search, for the receipt. The tokens of all branches add up to all that were generated.

    `fate`: running | chosen | agreed (same answer as the chosen one) | outvoted | outscored | stopped
    (cut off when the search had decided) | no_answer | truncated | failed | wrong (a check said so) |
    filtered (its confidence was too low) | expanded (a step that others go on from) | pruned (a step that
    nobody went on from).
    """

    nodes: tuple[NodeId, ...]
    tokens: int
    answer: str | None
    score: float | None
    fate: str
    reason: str


@dataclass(frozen=True, slots=True)
class Costs:
    """What calls other than `Generate` cost at most, in charged tokens."""

    score_tokens: int = 0
    check_tokens: int = 0
    compare_tokens: int = 0

    def of(self, call: Call) -> int:
        """Charged tokens that a call may cost at most."""
        match call:
            case Generate():
                return call.given_tokens + call.max_new_tokens
            case Score():
                return self.score_tokens
            case Check():
                return self.check_tokens
            case Compare():
                return self.compare_tokens
            case Equate():
                return 0


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

        The growth of `tree.live_tokens` by the ask itself (what it wakes and what it writes itself, less
        what it puts to sleep) and the `max_new_tokens` of its `Generate` calls are together at most
        `room.kv_tokens`.

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
        """The answer if the search had to stop now.

        None when there is not one token of any, or when the technique refuses all there is and says so by
        its `stop_reason`.
        """

    def gain(self) -> float:
        """Expected improvement of the answer per further token, >= 0; 0 when finished."""

    def branches(self) -> Sequence[Branch]:
        """All branches tried so far, in the order they were started."""
