"""Self-consistency: draw samples, answer with the majority, stop when the majority is clear.

Algorithm: up to `n` samples are drawn, `width` at a time. Each complete sample votes for the normal form
of its final answer. The vote ends as soon as the remaining samples cannot change the winner, and, with
`stop="beta"`, as soon as the leader is more probable than the runner-up with `threshold`. When
`give_up_after` complete samples or more wrote no extractable answer, and most of them all, the query is
not one to vote on and the search ends. Equal votes go to the answer of the earliest sample, and the tie is
reported.

Papers: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", ICLR 2023
(arXiv 2203.11171). Aggarwal et al., "Let's Sample Step by Step: Adaptive-Consistency for Efficient
Reasoning and Coding with LLMs", EMNLP 2023 (arXiv 2305.11860).

Known limits: needs answers that can be grouped; free text rarely agrees. Short samples end first, so an
early stop favours answers that are reached in few tokens; a larger `threshold` or `min_votes` lessens it.
A sample that was cut short has no vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search.ballot import Ballot, Standing
from search.contract import CallId, Candidate
from search.ground import Ground
from search.params import MAX_SAMPLES, require_float, require_int, require_one_of
from search.rollout import Plan
from search.sample import Sample
from search.sampling import SampleSearch, first_by_visibility
from search.stopping import BetaStop, DecidedStop, counts, lead_probability


@dataclass(frozen=True, slots=True)
class SelfConsistencyParams:
    """Parameters of `SelfConsistency`.

    Args:
        n: samples at most.
        width: how many run at once. Smaller wastes fewer tokens when the vote ends early.
        stop: `beta` stops by the Beta criterion, `none` only when the rest cannot change the winner.
        threshold: probability that the leader must reach for `beta`, 0.5..1.
        min_votes: votes that `beta` needs at least.
        give_up_after: complete samples without an answer that end the search, if those with one are fewer.
        max_retries: how many failed samples are replaced.

    Raises:
        ValueError: a value is out of its range.
    """

    n: int = 16
    width: int = 4
    stop: Literal["beta", "none"] = "beta"
    threshold: float = 0.95
    min_votes: int = 2
    give_up_after: int = 2
    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_one_of("stop", self.stop, ("beta", "none"))
        require_float("threshold", self.threshold, 0.5, 1.0)
        require_int("min_votes", self.min_votes, 1, MAX_SAMPLES)
        require_int("give_up_after", self.give_up_after, 1, MAX_SAMPLES)
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)


class SelfConsistency(SampleSearch):
    """See the module's docstring.

    `gain()`: the probability, by the Beta posterior, that the leader is not the more probable of the two
    strongest answers, per expected tokens of one more sample. It is an upper bound of what one sample can
    do, good for comparing searches. Before the first vote it is 1 per expected tokens.
    """

    def __init__(self, params: SelfConsistencyParams, ground: Ground) -> None:
        super().__init__(ground, Plan(params.n, params.width, params.max_retries))
        self._params = params
        self._ballot = Ballot()
        self._standing: Standing | None = None
        self._decided = DecidedStop()
        self._beta = BetaStop(params.threshold, params.min_votes) if params.stop == "beta" else None

    def _take(self, sample: Sample) -> list[CallId]:
        if sample.key is not None:
            self._ballot.add(sample.key, sample.index)
            self._standing = self._ballot.standing()
        return []

    def _merge(self, key: str, into: str) -> None:
        self._ballot.merge(key, into)
        self._standing = self._ballot.standing()

    def _choose(self) -> Candidate:
        standing = self._standing
        if standing is None:
            sample = first_by_visibility(self._complete)
            return Candidate(sample.nodes[-1], None, None, complete=True, begin=self._begin)
        sample = self._rollout.samples[standing.samples[0]]
        return Candidate(
            sample.nodes[-1],
            sample.answer,
            standing.key,
            complete=True,
            support=standing.share,
            tie=standing.tie,
            begin=self._begin,
        )

    def _enough(self) -> str | None:
        silent = len(self._ended) - len(self._ballot)
        if silent >= self._params.give_up_after and silent > len(self._ballot):
            return "no_answers"
        if self._standing is None:
            return None
        remaining = self._rollout.remaining
        if self._decided.stops(self._ballot, remaining):
            return "decided"
        if self._beta is not None and self._beta.stops(self._ballot, remaining):
            return "confident"
        return None

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        if sample.key == chosen.key:
            return "agreed", "the same answer as the chosen one"
        return "outvoted", self._why_chosen(chosen)

    def _why_chosen(self, chosen: Candidate) -> str:
        if self._standing is None:
            return "the first complete text; no sample wrote a final answer"
        votes = f"{self._standing.weight:.0f} of {len(self._ballot)} votes for {chosen.answer}"
        return f"{votes}, a tie that the earliest sample decides" if chosen.tie else votes

    def _expected_gain(self) -> float:
        return 1.0 if self._standing is None else float(1 - lead_probability(*counts(self._ballot)))
