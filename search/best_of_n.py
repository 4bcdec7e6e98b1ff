"""Best-of-N: draw N samples, score each complete one, answer with the best.

Algorithm: `n` samples are drawn, `width` at a time, and each complete one with text outside thinking is
scored, in batches of `score_batch` while others run and without delay when none does. `aggregate="max"`
answers with the highest score. `aggregate="weighted"` (weighted best-of-N) adds up the scores of equal
answers, and answers with the best sample of the strongest group.

Ranking, under both aggregates: samples with an answer and a score; then those with an answer whose score
failed or has not come, by majority vote among themselves; then those without an answer, by score. So when
nothing could be scored this is self-consistency, and a failing verifier never passes for `wrong`. Empty
text never wins. Equal standing goes to the earliest sample, and the tie is reported.

Papers: Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021 (arXiv 2110.14168), for
best-of-N. Li et al., "Making Language Models Better Reasoners with Step-Aware Verifier", ACL 2023 (arXiv
2206.02336), for the weighted vote.

Known limits: as good as its verifier; a verifier that can be fooled is fooled more often as `n` grows,
`max` sooner than `weighted`. There is no early stop. What is cut by a deadline before its batch is full has
no score and is voted on. A sample that was cut short is not scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search.choice import Choice
from search.contract import CallId, Candidate
from search.ground import Ground
from search.params import MAX_SAMPLES, require_int, require_one_of
from search.rollout import Plan
from search.sample import Sample
from search.sampling import SampleSearch


@dataclass(frozen=True, slots=True)
class BestOfNParams:
    """Parameters of `BestOfN`.

    Args:
        n: samples.
        width: how many run at once.
        by: what ranks the samples: the verifier's `score`, or a `check` of the answer. A check ends the
            search at the first answer that is right.
        aggregate: `weighted` adds the scores of equal answers, `max` takes the highest score.
        score_batch: complete samples scored together while others still run; 1 scores each as it ends.
        max_retries: how many failed samples are replaced.

    Raises:
        ValueError: a value is out of its range.
    """

    n: int = 16
    width: int = 16
    by: Literal["score", "check"] = "score"
    aggregate: Literal["weighted", "max"] = "weighted"
    score_batch: int = 16
    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_int("score_batch", self.score_batch, 1, MAX_SAMPLES)
        require_one_of("by", self.by, ("score", "check"))
        require_one_of("aggregate", self.aggregate, ("weighted", "max"))
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)


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
