"""What all composites share: the ask/tell frame round inner searches that run one after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from search.contract import (
    Branch,
    Call,
    CallId,
    Candidate,
    Check,
    Checked,
    Event,
    Room,
    Score,
    Scored,
    Search,
)
from search.ground import Ground
from search.tree import Tree


@dataclass(slots=True, eq=False)
class Run:
    """One inner search.

    Args:
        number: from 0 in the order of starting.
        search: the search.
        turn: the given node that it grows from; None where that is the root of the composite.
        verdict: of a check of its answer.
        own_score: of its answer, where its own search gave none.
        judged: why its answer was not taken, for the receipt.
    """

    number: int
    search: Search
    turn: int | None = None
    verdict: Literal["right", "wrong"] | None = None
    own_score: float | None = None
    judged: str = ""

    @property
    def candidate(self) -> Candidate | None:
        """Its answer so far."""
        best = self.search.best()
        return best if best is None or self.own_score is None else replace(best, score=self.own_score)

    @property
    def answered(self) -> bool:
        best = self.search.best()
        return best is not None and best.answer is not None


class NestedSearch(ABC):
    """A search that leads one inner search after another, all in its own tree and room.

    A technique says what comes next (`_next`), what to make of an inner search that ended (`_over`) and of a
    verifier's word on its answer (`_judge`), and which inner search has the answer (`_holder`). The answer
    that stands must follow from the answers of the inner searches alone, ended or not: so the end of one by a
    failure changes nothing.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._runs: list[Run] = []
        self._running: Run | None = None
        self._wanted: tuple[Literal["check", "score"], Run] | None = None
        self._asked: tuple[Check | Score, Run] | None = None
        self._stop_reason: str | None = None

    @property
    def tree(self) -> Tree:
        return self._ground.tree

    @property
    def finished(self) -> bool:
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        return self._stop_reason

    def ask(self, room: Room) -> list[Call]:
        if self.finished or self._asked is not None:
            return []
        if self._wanted is not None:
            return self._verify(room)
        inner = replace(room, tokens=max(0, room.tokens - self._reserve()))
        return self._next(inner) if self._running is None else self._running.search.ask(inner)

    def tell(self, event: Event) -> list[CallId]:
        if self.finished:
            return []
        if self._asked is not None:
            call, run = self._asked
            if event.call == call.id:
                self._asked = None
                self.tree.retire(call.node)
                self._take_verdict(run, event)
                self._judge(run)
            return []
        if self._running is None:
            return []
        run = self._running
        cancels = run.search.tell(event)
        if run.search.finished:
            self._running = None
            if run.turn is not None:
                self.tree.retire(run.turn)
            self._over(run)
        return cancels

    def release(self) -> None:
        if self._asked is not None:
            raise RuntimeError("1 calls are in flight")
        if self._running is not None:
            self._running.search.release()
        else:
            self.tree.release()

    def best(self) -> Candidate | None:
        holder = self._holder()
        return None if holder is None else holder.candidate

    def gain(self) -> float:
        return 0.0 if self.finished else self._expected_gain()

    def branches(self) -> Sequence[Branch]:
        holder = self._holder()
        return [
            branch if run is holder else self._passed(run, branch, holder)
            for run in self._runs
            for branch in run.search.branches()
        ]

    @abstractmethod
    def _next(self, room: Room) -> list[Call]:
        """Start the next inner search, by `_start` or `_start_turn`. Nothing is running."""

    @abstractmethod
    def _over(self, run: Run) -> None:
        """An inner search ended: want a verifier's word on it, finish, or leave it to `_next`."""

    @abstractmethod
    def _judge(self, run: Run) -> None:
        """The word that was wanted came, or could not be had."""

    @abstractmethod
    def _holder(self) -> Run | None:
        """The inner search whose answer is the answer as things stand; None when there is not one token."""

    @abstractmethod
    def _passed(self, run: Run, branch: Branch, holder: Run | None) -> Branch:
        """A branch of an inner search that has not the answer, as the composite sees it."""

    @abstractmethod
    def _reserve(self) -> int:
        """Tokens kept back for the verifier's word on the inner search that runs."""

    @abstractmethod
    def _expected_gain(self) -> float:
        """As `gain` of a search that is not finished."""

    def _finish(self, reason: str) -> None:
        self._stop_reason = reason

    def _start(self, search: Search, room: Room) -> list[Call]:
        self._running = Run(len(self._runs), search)
        self._runs.append(self._running)
        return search.ask(room)

    def _want(self, what: Literal["check", "score"], run: Run) -> None:
        self._wanted = (what, run)

    def _verify(self, room: Room) -> list[Call]:
        assert self._wanted is not None
        what, run = self._wanted
        best = run.search.best()
        assert best is not None
        cost = self._ground.costs.check_tokens if what == "check" else self._ground.costs.score_tokens
        if room.slots < 1 or room.tokens < cost or room.kv_tokens < self.tree.wake_cost(best.node):
            return []
        self.tree.wake(best.node)
        kind = Check if what == "check" else Score
        call = kind(next(self._ground.calls), best.node, best.begin)
        self._wanted, self._asked = None, (call, run)
        return [call]

    def _take_verdict(self, run: Run, event: Event) -> None:
        # What failed, or could not tell, leaves things as they were.
        if isinstance(event, Scored) and 0.0 <= event.score <= 1.0:
            run.own_score = event.score
        elif isinstance(event, Checked) and event.verdict in ("right", "wrong"):
            run.verdict = "right" if event.verdict == "right" else "wrong"
