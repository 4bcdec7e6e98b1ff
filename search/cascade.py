"""Cascade: cheap searches first; a dearer one only where the cheap one's answer does not convince.

Algorithm: the stages run in order. The answer of a stage is taken when its support, the share of the vote or
of the score mass behind it, is at least `min_support` and its score, where it has one, at least `min_score`.
With `check` the verifier decides instead: an answer that is right is taken, one that is wrong is not, and
where the check cannot tell, support and score decide. Otherwise the next stage runs, at its own engine tier.
The last stage's answer stands if it has one, else the best of the earlier ones: none that a check found
wrong, if it can be, and of the rest the one with the most support.

Sources: Chen et al., "FrugalGPT", 2023 (arXiv 2305.05176), section 3, for the cascade; Yue et al., "Large
Language Model Cascades with Mixture of Thoughts Representations for Cost-efficient Reasoning", ICLR 2024
(arXiv 2310.03094), for agreement among samples as the signal to stop.

Known limits: the support of a technique without a vote (`single`, `refine`) is always 1, so that only its
score or a check can escalate from it. A cheap model that agrees on a wrong answer is believed. Stages share
no samples. The KV of the prompt is counted once, although each tier holds its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from search.bounds import Bounds
from search.contract import Branch, Call, Candidate, Room
from search.ground import Ground
from search.nesting import Nest, Stage, require_stages
from search.nesting_search import NestedSearch, Run
from search.params import require_float


def _default_stages() -> tuple[Stage, ...]:
    return (
        Stage("self_consistency", {"n": 4}),
        Stage("self_consistency", {"n": 16}),
    )


@dataclass(frozen=True, slots=True)
class CascadeParams:
    """Parameters of `Cascade`.

    Args:
        stages: the inner searches, the cheapest first.
        min_support: support (0..1) that an answer needs, unless it is the last stage's.
        min_score: score (0..1) that it needs where it has one.
        check: whether the verifier checks each answer but the last stage's.

    Raises:
        ValueError: a value is out of its range.
    """

    stages: tuple[Stage, ...] = _default_stages()
    min_support: float = 0.75
    min_score: float = 0.0
    check: bool = False

    def __post_init__(self) -> None:
        require_stages("stages", self.stages, 2)
        require_float("min_support", self.min_support, 0.0, 1.0)
        require_float("min_score", self.min_score, 0.0, 1.0)
        if not isinstance(self.check, bool):
            raise ValueError(f"check must be true or false, not {self.check!r}")

    def most_tokens(self, bounds: Bounds, inner: Callable[[Stage, Bounds], int]) -> int:
        """Charged tokens at most: those of all stages, and of the checks between them."""
        checks = (len(self.stages) - 1) * bounds.costs.check_tokens if self.check else 0
        return checks + sum(inner(stage, bounds) for stage in self.stages)


class Cascade(NestedSearch):
    """See the module's docstring.

    `gain()`: that of the stage that runs; between two of them what is missing to the full support of the
    answer so far, per token of one sample.

    Raises:
        ValueError: a stage is refused.
    """

    def __init__(self, params: CascadeParams, ground: Ground, nest: Nest) -> None:
        super().__init__(ground)
        self._params = params
        # All are made at once, so that one that is refused is refused now and not when its turn comes.
        self._stages = [
            nest(stage, ground.nested(i, tier=stage.tier, unpaid=0 if i else ground.unpaid))
            for i, stage in enumerate(params.stages)
        ]

    def _next(self, room: Room) -> list[Call]:
        return self._start(self._stages[len(self._runs)], room)

    def _over(self, run: Run) -> None:
        if self._is_last(run):
            self._finish(run.search.stop_reason or "all_done")
        elif self._params.check and run.answered:
            self._want("check", run)
        else:
            self._judge(run)

    def _judge(self, run: Run) -> None:
        if run.verdict == "right":
            self._finish("verified")
            return
        run.judged = self._objection(run)
        if not run.judged:
            self._finish("agreed")

    def _objection(self, run: Run) -> str:
        """Why the answer of a stage is not taken; empty when it is."""
        best = run.candidate
        if best is None or best.answer is None:
            return "no answer"
        if run.verdict == "wrong":
            return "a check found it wrong"
        if run.verdict is None and best.support < self._params.min_support:
            return f"a support of {best.support:.0%} is below {self._params.min_support:.0%}"
        if run.verdict is None and best.score is not None and best.score < self._params.min_score:
            return f"a score of {best.score:.3f} is below {self._params.min_score:.3f}"
        return ""

    def _is_last(self, run: Run) -> bool:
        return run.number == len(self._stages) - 1

    def _holder(self) -> Run | None:
        return max((r for r in self._runs if r.candidate is not None), key=self._standing, default=None)

    def _standing(self, run: Run) -> tuple[bool, bool, bool, bool, bool, float, int]:
        best = run.candidate
        assert best is not None
        answered = best.answer is not None
        return (
            answered,
            answered and self._is_last(run),
            run.verdict != "wrong",
            not self._objection(run),
            best.complete,
            best.support if best.complete else len(self.tree.path_text(best.node, best.begin)),
            run.number,
        )

    def _passed(self, run: Run, branch: Branch, holder: Run | None) -> Branch:
        if branch.fate not in ("chosen", "agreed"):
            return branch
        best = run.candidate
        standing = holder.candidate if holder is not None else None
        if best is None or (branch.fate == "chosen" and branch.nodes[-1] != best.node):
            return replace(branch, fate="expanded", reason="a step on the way to an answer of this stage")
        reason = f"escalated: {run.judged}" if run.judged else "another stage's answer stands"
        return replace(branch, fate=self._fate(run, best, standing), reason=reason)

    def _fate(self, run: Run, best: Candidate, standing: Candidate | None) -> str:
        if best.answer is None:
            return "no_answer"
        if run.verdict == "wrong":
            return "wrong"
        if standing is not None and best.key == standing.key:
            return "agreed"
        by_score = best.support >= self._params.min_support and best.score is not None
        return "outscored" if by_score else "outvoted"

    def _reserve(self) -> int:
        last = len(self._stages) - 1
        number = len(self._runs) if self._running is None else self._running.number
        return self._ground.costs.check_tokens if self._params.check and number < last else 0

    def _expected_gain(self) -> float:
        if self._running is not None:
            return self._running.search.gain()
        best = self.best()
        missing = 1.0 if best is None or best.answer is None else 1.0 - best.support
        return missing / max(1, self._ground.sample_tokens)
