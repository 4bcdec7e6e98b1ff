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

from search.ballot import Ballot
from search.contract import Candidate, Costs
from search.params import MAX_SAMPLES, require_int, require_one_of
from search.rollout import Plan
from search.sample import Sample, SampleLimits
from search.sampling import SampleSearch


@dataclass(frozen=True, slots=True)
class BestOfNParams:
    """Parameters of `BestOfN`.

    Args:
        n: samples.
        width: how many run at once.
        aggregate: `weighted` adds the scores of equal answers, `max` takes the highest score.
        score_batch: complete samples scored together while others still run; 1 scores each as it ends.
        max_retries: how many failed samples are replaced.

    Raises:
        ValueError: a value is out of its range.
    """

    n: int = 16
    width: int = 16
    aggregate: Literal["weighted", "max"] = "weighted"
    score_batch: int = 16
    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_int("score_batch", self.score_batch, 1, MAX_SAMPLES)
        require_one_of("aggregate", self.aggregate, ("weighted", "max"))
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)


class BestOfN(SampleSearch):
    """See the module's docstring.

    `gain()`: of k + 1 samples each is equally likely to have the highest score, and it can be better by at
    most what is missing to 1: (1 - s) / (k + 1) per expected tokens, s being the best score (`max`) or the
    winner's share of the score mass (`weighted`). An upper bound, good for comparing searches.
    """

    def __init__(
        self,
        prompt_ids: tuple[int, ...],
        params: BestOfNParams,
        limits: SampleLimits,
        costs: Costs,
        seed: int,
    ) -> None:
        plan = Plan(
            params.n,
            params.width,
            params.max_retries,
            score_tokens=costs.score_tokens,
            score_batch=params.score_batch,
        )
        super().__init__(prompt_ids, limits, plan, seed)
        self._weighted = params.aggregate == "weighted"
        self._scores = Ballot()
        self._votes = Ballot()
        self._top: Sample | None = None
        self._scored: set[int] = set()
        self._counted: set[int] = set()

    def _take(self, sample: Sample) -> None:
        if sample.key is None:
            return
        if sample.index not in self._counted:
            self._counted.add(sample.index)
            self._votes.add(sample.key, sample.index)
        if sample.score is not None and sample.index not in self._scored:
            self._scored.add(sample.index)
            self._scores.add(sample.key, sample.index, sample.score)
            if self._top is None or _by_score(sample) < _by_score(self._top):
                self._top = sample

    def _choose(self) -> Candidate:
        if self._top is not None:
            return self._by_scores(self._top)
        standing = self._votes.standing()
        if standing is not None:
            sample = self._rollout.samples[standing.samples[0]]
            return self._candidate(sample, standing.share, standing.tie)
        return self._candidate(min(self._complete, key=_by_score), 1.0, tie=False)

    def _by_scores(self, top: Sample) -> Candidate:
        standing = self._scores.standing()
        assert standing is not None
        samples = self._rollout.samples
        if self._weighted:
            best = min((samples[i] for i in standing.samples), key=_by_score)
            return self._candidate(best, standing.share, standing.tie)
        groups = {g.key: g for g in self._scores.groups()}
        own = groups[top.key or ""]
        mass = sum(g.weight for g in groups.values())
        share = float(own.weight / mass) if mass else len(own.samples) / len(self._scores)
        tie = any(samples[i].score == top.score and samples[i].key != top.key for i in self._scored)
        return self._candidate(top, share, tie)

    def _candidate(self, sample: Sample, support: float, tie: bool) -> Candidate:
        return Candidate(
            sample.nodes[-1], sample.answer, sample.key, True, score=sample.score, support=support, tie=tie
        )

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        if sample.key == chosen.key:
            return "agreed", "the same answer as the chosen one"
        if self._top is None:
            return "outvoted", self._why_chosen(chosen)
        return "outscored", sample.score_reason or self._why_chosen(chosen)

    def _why_chosen(self, chosen: Candidate) -> str:
        if chosen.key is None:
            return "no sample wrote a final answer"
        if self._top is None:
            return f"{chosen.support:.0%} of the votes; no sample has a score"
        if self._weighted:
            why = f"{chosen.support:.0%} of the score mass is for {chosen.answer}"
        else:
            why = f"the highest score, {chosen.score:.3f}"
        return f"{why}, a tie that the earliest sample decides" if chosen.tie else why

    def _expected_gain(self) -> float:
        if self._chosen is None:
            return 1.0
        sure = self._chosen.support if self._weighted else self._chosen.score or 0.0
        return (1.0 - sure) / (len(self._complete) + 1)


def _by_score(sample: Sample) -> tuple[bool, bool, float, int]:
    """Sort key, best first: text outside thinking, scored, the higher score, the earlier sample."""
    return (not sample.visible, sample.score is None, -(sample.score or 0.0), sample.index)
