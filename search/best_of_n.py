"""Best-of-N: draw N samples, score each complete one, answer with the best.

Algorithm: `n` samples are drawn, `width` at a time. `by` says what ranks the complete ones with text outside
thinking:
- `score`: the verifier's score, asked in batches of `score_batch` while others run and without delay when
  none does. With a `reduction` other than `last` the samples are drawn step by step, each step is scored, and
  a sample's score is the least, the product or the mean of its steps'. `aggregate="max"` answers with the
  highest score; `weighted` adds up the scores of equal answers, and answers with the best sample of the
  strongest group.
- `check`: a check of each answer; the search ends at the first one that is right.
- `compare`: when all samples are there, a judge compares their answers two at a time in a tournament: a
  knockout within `finalists` groups, then every winner against every other.

Ranking by scores: samples with an answer and a score; then those with an answer whose score failed or has not
come, by majority vote among themselves; then those without an answer, by score. So when nothing could be
scored this is self-consistency, and a failing verifier never passes for `wrong`. Empty text never wins.
Equal standing goes to the earliest sample, and the tie is reported.

Sources: Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021 (arXiv 2110.14168), for
best-of-N. Li et al., "Making Language Models Better Reasoners with Step-Aware Verifier", ACL 2023 (arXiv
2206.02336), for the weighted vote. Lightman et al., "Let's Verify Step by Step", 2023 (arXiv 2305.20050), for
reductions of step scores. For the tournament see `search.tournament`.

Known limits: as good as its verifier; a verifier that can be fooled is fooled more often as `n` grows,
`max` sooner than `weighted`. There is no early stop but by a check. What is cut by a deadline before its
batch is full has no score and is voted on. A sample that was cut short is not scored. Step by step there is
one score a step, and one call a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from search.bounds import Bounds
from search.choice import Choice
from search.contract import CallId, Candidate
from search.ground import Ground
from search.params import MAX_SAMPLES, require_int, require_one_of
from search.reduction import REDUCTIONS, Reduction
from search.rollout import Plan
from search.sample import Sample
from search.sampling import SampleSearch
from search.tournament import MAX_FINALISTS, TournamentParams

MATCH_RETRIES = 1
"""How often a comparison that failed is asked again."""


@dataclass(frozen=True, slots=True)
class BestOfNParams:
    """Parameters of `BestOfN`.

    Args:
        n: samples.
        width: how many run at once.
        by: what ranks the samples: the verifier's `score`, a `check` of the answer, or a judge's `compare`.
        aggregate: by `score`, `weighted` adds the scores of equal answers, `max` takes the highest score.
        reduction: how the scores of a sample's steps become its score; `last` scores the whole alone.
        max_depth: steps of a sample at most, where the reduction is not `last`.
        score_batch: complete samples scored together while others still run; 1 scores each as it ends.
        finalists: by `compare`, the groups of the knockout; their winners all meet one another.
        max_retries: how many failed samples (step by step: failed steps) are replaced.

    Raises:
        ValueError: a value is out of its range, or the reduction is not `last` where nothing is scored.
    """

    n: int = 16
    width: int = 16
    by: Literal["score", "check", "compare"] = "score"
    aggregate: Literal["weighted", "max"] = "weighted"
    reduction: Reduction = "last"
    max_depth: int = 64
    score_batch: int = 16
    finalists: int = 4
    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_int("score_batch", self.score_batch, 1, MAX_SAMPLES)
        require_one_of("by", self.by, ("score", "check", "compare"))
        require_one_of("aggregate", self.aggregate, ("weighted", "max"))
        require_one_of("reduction", self.reduction, REDUCTIONS)
        require_int("max_depth", self.max_depth, 1, MAX_SAMPLES)
        require_int("finalists", self.finalists, 1, MAX_FINALISTS)
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)
        if self.by != "score" and self.reduction != "last":
            raise ValueError(f"reduction must be last with by={self.by}, not {self.reduction!r}")

    @property
    def tournament(self) -> TournamentParams:
        return TournamentParams(self.finalists, None, MATCH_RETRIES)

    def most_compares(self) -> int:
        """Comparisons at most, all of them asked twice."""
        groups = min(self.finalists, self.n)
        matches = self.n - groups + groups * (groups - 1) // 2
        return matches * (1 + MATCH_RETRIES)

    def most_tokens(self, bounds: Bounds, _inner: Callable[[Any, Bounds], int]) -> int:
        """Charged tokens beyond the prompt at most."""
        samples, costs = self.n + self.max_retries, bounds.costs
        total = samples * bounds.sample_tokens
        if self.by == "compare":
            return total + self.most_compares() * costs.compare_tokens
        if self.by == "check":
            return total + samples * costs.check_tokens
        steps = 1 if self.reduction == "last" else max(1, min(self.max_depth, bounds.sample_tokens))
        return total + samples * steps * costs.score_tokens


class BestOfN(SampleSearch):
    """See the module's docstring.

    `gain()`: of k + 1 samples each is equally likely to have the highest score, and it can be better by at
    most what is missing to 1: (1 - s) / (k + 1) per expected tokens, s being the best score (`max`) or the
    winner's share of the score mass (`weighted`). An upper bound, good for comparing searches.
    """

    def __init__(self, params: BestOfNParams, ground: Ground) -> None:
        verify: Literal["score", "check"] = "check" if params.by == "check" else "score"
        plan = Plan(params.n, params.width, params.max_retries, verify=verify, score_batch=params.score_batch)
        super().__init__(ground, plan)
        self._by_check = params.by == "check"
        self._weighted = params.aggregate == "weighted"
        self._choice = Choice(weighted=self._weighted, begin=ground.root)

    def _take(self, sample: Sample) -> list[CallId]:
        self._choice.take(sample)
        return []

    def _merge(self, key: str, into: str) -> None:
        self._choice.merge(key, into)

    def _choose(self) -> Candidate | None:
        return self._choice.candidate()

    def _enough(self) -> str | None:
        if self._by_check and any(s.verdict == "right" for s in self._complete):
            return "verified"
        return None

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        return self._choice.fate(sample, chosen)

    def _why_chosen(self, chosen: Candidate) -> str:
        return self._choice.why(chosen)

    def _expected_gain(self) -> float:
        if self._chosen is None:
            return 1.0
        sure = self._chosen.support if self._weighted else self._chosen.score or 0.0
        return (1.0 - sure) / (len(self._complete) + 1)
