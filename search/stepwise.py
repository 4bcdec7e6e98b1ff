"""What all techniques that search over steps share: the ask/tell frame round a `Stepper`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Literal, TypeAlias, get_args

from search.choice import Choice
from search.contract import Branch, Call, CallId, Candidate, Equated, Event, Room
from search.demand import Demand
from search.ground import Ground
from search.grouping import Grouping
from search.params import MAX_SAMPLES, require_float, require_int, require_one_of
from search.reduction import REDUCTIONS, Reduction, reduce
from search.step import Root, Step, StepState
from search.stepper import Growth, Stepper
from search.tree import Tree

Aggregate: TypeAlias = Literal["weighted", "max"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
_LEAST_LOG = -700.0
"""Log of the least likelihood that an answer is weighed by; exp of much less is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParams:
    """Parameters of every search over steps.

    Args:
        max_depth: steps of a path at most; one that wants more is truncated.
        reduction: how the scores of a path's steps become that of its answer.
        aggregate: `weighted` adds up the scores of equal answers, `max` takes the highest one.
        likelihood: by `weighted`, each score is multiplied by the probability that the model gave the path,
            raised to this power; 0 for scores alone.
        max_retries: how many failed steps are drawn again.

    Sources of `likelihood`: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language
    Models", ICLR 2023 (arXiv 2203.11171), weigh votes by the probability of their paths. Xie et al.,
    "Self-Evaluation Guided Beam Search for Reasoning", NeurIPS 2023 (arXiv 2305.00633), multiply powers of
    the model's probability and of a score.

    Raises:
        ValueError: a value is out of its range.
    """

    max_depth: int = 64
    reduction: Reduction = "last"
    aggregate: Aggregate = "weighted"
    likelihood: float = 0.0
    max_retries: int = 4

    def __post_init__(self) -> None:
        require_int("max_depth", self.max_depth, 1, MAX_SAMPLES)
        require_one_of("reduction", self.reduction, REDUCTIONS)
        require_one_of("aggregate", self.aggregate, AGGREGATES)
        require_float("likelihood", self.likelihood, 0.0, 10.0)
        if self.likelihood and self.aggregate != "weighted":
            raise ValueError(f"likelihood must be 0 with aggregate={self.aggregate}, not {self.likelihood!r}")
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)


class StepSearch(ABC):
    """A search over a tree of steps.

    A technique says how many children each step is to get (`_demand`), what to make of a step that ended
    (`_take`), which steps matter least (`_worst`) and when it has seen enough (`_enough`).

    The answer is chosen among the complete paths as in `search.choice`, each weighed by its steps' scores
    reduced to one. `best()` without a complete path is the longest text, marked as not complete. A path that
    reaches the context limit or `max_depth` is truncated: nothing follows it, and it has no answer.

    Args:
        merge_twins: as in `Stepper`.
    """

    def __init__(self, ground: Ground, params: StepParams, *, merge_twins: bool = True) -> None:
        self._stepper = Stepper(
            ground, max_depth=params.max_depth, merge_twins=merge_twins, logprobs=int(params.likelihood > 0)
        )
        self._growth = Growth(self._grow, self._begun, self._undone, self._worst)
        self._demand = Demand()
        self._grouping = Grouping(ground.calls, enabled=ground.limits.equate)
        self._begin = ground.root
        self._reduction = params.reduction
        self._likelihood = params.likelihood
        self._retries = params.max_retries
        self._choice = Choice(weighted=params.aggregate == "weighted", begin=ground.root)
        self._complete: dict[int, Step] = {}
        self._chosen: Candidate | None = None
        self._stop_reason: str | None = None

    @property
    def tree(self) -> Tree:
        return self._stepper.tree

    @property
    def finished(self) -> bool:
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        return self._stop_reason

    def ask(self, room: Room) -> list[Call]:
        if self.finished:
            return []
        equates = self._grouping.ask(room.slots)
        room = replace(room, slots=room.slots - len(equates))
        return [*equates, *self._stepper.ask(room, self._growth)]

    def tell(self, event: Event) -> list[CallId]:
        if self.finished:
            return []
        cancels: list[CallId] = []
        if event.call in self._grouping.in_flight:
            changed = self._join(event)
        else:
            steps = self._stepper.tell(event)
            if not steps:
                return []
            changed = False
            for step in steps:
                changed |= self._finish(step)
                if step.ended:
                    cancels += self._take(step)
        if changed:
            self._chosen = self._choice.candidate()
        self._stop_reason = self._reason_to_stop()
        if self._stop_reason is None:
            return cancels
        cancels += [*self._grouping.in_flight, *self._stepper.stop(self._stop_reason)]
        self._grouping.stop()
        return cancels

    def release(self) -> None:
        if self._grouping.in_flight:
            raise RuntimeError(f"{len(self._grouping.in_flight)} calls are in flight")
        self._stepper.release()

    def best(self) -> Candidate | None:
        longest = self._stepper.longest
        if self._chosen is not None or longest is None:
            return self._chosen
        ended = longest.state is StepState.COMPLETE
        return Candidate(longest.nodes[-1], None, None, complete=ended, begin=self._begin)

    def gain(self) -> float:
        """What the chosen answer lacks of all the score mass, shared with the answers so far, per expected
        tokens of one more step: an upper bound, good for comparing searches."""
        if self.finished:
            return 0.0
        sure = 0.0 if self._chosen is None else self._chosen.support
        return (1.0 - sure) / (len(self._complete) + 1) / self._stepper.expected_tokens

    def branches(self) -> Sequence[Branch]:
        """One a step, its own tokens alone."""
        chosen = self._chosen
        on_path = set() if chosen is None else set(self.tree.path(chosen.node))
        return [self._branch(step, on_path) for step in self._stepper.steps if step.nodes]

    @abstractmethod
    def _take(self, step: Step) -> list[CallId]:
        """A step has ended and has its score, or failed. Returns calls to cancel."""

    def _grow(self) -> Step | Root | None:
        """The step that gets the next child; None for nothing before something comes back."""
        return self._demand.next()

    def _begun(self, step: Step) -> None:
        """A child that `_grow` asked for was made."""
        self._demand.begun(step)

    def _undone(self, step: Step) -> None:
        """There was no room for that child after all."""
        self._demand.undone(step)

    def _retry(self, step: Step) -> bool:
        """Draw a step that failed again, if it did and if any may still be."""
        if step.state is not StepState.FAILED or self._retries < 1:
            return False
        self._retries -= 1
        self._demand.again(step)
        return True

    def _worst(self) -> Iterable[Step]:
        """Steps whose KV may be let go of, the least promising first."""
        return sorted(
            self._stepper.memory.open, key=lambda s: (self._demand.wants(s), self.value(s), -s.index)
        )

    def _enough(self) -> str | None:
        """The reason to stop although more could be asked; None to go on."""
        return None

    def value(self, step: Step) -> float:
        """How promising a path is: the reduction of its steps' scores. Without any it is 0."""
        return reduce(self._reduction, step.path_scores)

    def _likely(self, step: Step) -> float:
        """The probability of a path's tokens, to the power of `likelihood`."""
        log = self._likelihood * step.logprob
        # Very long paths count alike rather than not at all, and so do those of which this is not a number.
        return exp(min(log, 0.0)) if log > _LEAST_LOG else exp(_LEAST_LOG)

    def _finish(self, step: Step) -> bool:
        """Count a finished answer, or its score. Returns whether it is one."""
        if not step.has_text or step.state is StepState.TWIN:
            return False
        if step.index not in self._complete:
            self._complete[step.index] = step
            if step.key is not None and not step.calls_tools:
                self._grouping.note(step.key, step.answer or "")
                step.key = self._grouping.key(step.key)
        weight = None
        if step.score is not None:
            step.score = self.value(step)
            weight = step.score * self._likely(step)
        self._choice.take(step, weight)
        return True

    def _join(self, event: Event) -> bool:
        joined = self._grouping.tell(event.call, event.same if isinstance(event, Equated) else None)
        if joined is None:
            return False
        key, into = joined
        for step in self._complete.values():
            if step.key == key:
                step.key = into
        self._choice.merge(key, into)
        return True

    def _reason_to_stop(self) -> str | None:
        if self._grouping.pending:
            return None
        enough = self._enough()
        if enough is not None:
            return enough
        if self._stepper.busy or self._grow() is not None:
            return None
        if self._complete:
            return "all_done"
        states = {s.state for s in self._stepper.steps if s.leaf}
        return "all_failed" if states == {StepState.FAILED} else "incomplete"

    def _branch(self, step: Step, on_path: set[int]) -> Branch:
        fate, reason = self._fate(step, on_path)
        return Branch(tuple(step.nodes), step.generated, step.answer, step.score, fate, reason)

    def _fate(self, step: Step, on_path: set[int]) -> tuple[str, str]:
        chosen = self._chosen
        if step.nodes[-1] in on_path:
            return "chosen", self._choice.why(chosen) if chosen and chosen.node == step.nodes[-1] else ""
        if step.finished and step.state is not StepState.TWIN:
            if step.key is None or chosen is None:
                return "no_answer", "no final answer in its text" if step.has_text else "empty text"
            return self._choice.fate(step, chosen)
        if step.children:
            return "expanded", f"{len(step.children)} steps go on from it"
        if step.state is StepState.OPEN:
            over = self.finished
            return ("pruned", "nobody went on from it") if over else ("running", "waiting for its turn")
        if step.state is StepState.TWIN:
            return "pruned", step.reason
        names = {StepState.WAITING: "running", StepState.SCORING: "running"}
        return names.get(step.state, str(step.state)), step.reason
