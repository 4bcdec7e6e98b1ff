"""Self-consistency: draw samples, answer with the majority, stop when the majority is clear.

Algorithm: up to `n` samples are drawn, `width` at a time, the `first` ones before all others. Each complete
sample votes for the normal form of its final answer, with a `weight`: 1, its confidence, or the verifier's
score of it. The vote ends as soon as the remaining samples cannot change the winner, and before that by the
rule that `stop` names. With `pace="needed"` no more samples are under way than the rule needs at the least if
they all agree, so that little is wasted when they do. A sample whose score has not come, or failed, weighs
0.5. When `give_up_after` complete samples or more have no vote, and most of them all, the query is not one
to vote on and the search ends. Equal votes go to the answer of the earliest sample, and the tie is reported.

Samples that call tools win only by a true majority of all samples with text, and then agree by the calls;
with `tool_vote="refuse"` they have no vote, and a set of nothing else ends without an answer.

Sources: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", ICLR 2023
(arXiv 2203.11171). Stopping: `beta`, Aggarwal et al., EMNLP 2023 (arXiv 2305.11860); `window`, Li et al.,
ICLR 2024 (arXiv 2401.10480); `confidence`, Aghazadeh et al., 2025 (arXiv 2511.02603). Votes weighed by a
verifier: Li et al., ACL 2023 (arXiv 2206.02336).

Known limits: needs answers that can be grouped; free text rarely agrees. Short samples end first, so an
early stop favours answers that are reached in few tokens; a larger `threshold` or `min_votes` lessens it,
and `window` has it least. `confidence` is as good as the confidences are. A sample that was cut short has no
vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search.ballot import Ballot, Standing
from search.choice import rank
from search.confidence import MeanLogprob
from search.confidence_stop import ConfidenceStop
from search.contract import CallId, Candidate, Chunk, Event
from search.ground import Ground
from search.params import MAX_SAMPLES, require_float, require_int, require_one_of
from search.rollout import Plan
from search.sample import Sample, Scoring, State
from search.sampling import SampleSearch, first_by_visibility
from search.stopping import BetaStop, DecidedStop, StoppingRule, counts, lead_probability, least_votes
from search.tool_vote import TOOL_VOTING, ToolVote, ToolVoting
from search.window_stop import WindowStop

MOST_SHARPNESS = 1000.0
UNSCORED = 0.5
"""What a vote weighs whose weight is not known."""
REFUSED = "tool_calls_without_strategy"


@dataclass(frozen=True, slots=True)
class SelfConsistencyParams:
    """Parameters of `SelfConsistency`.

    Args:
        n: samples at most.
        width: how many run at once. Smaller wastes fewer tokens when the vote ends early.
        first: samples that run before any other is started; 0 for none.
        pace: `needed` runs no more at once than `stop` needs at the least, `full` always `width`.
        stop: `beta` by the Beta criterion, `window` when a window of samples agrees, `confidence` by a
            posterior from the samples' confidences, `none` only when the rest cannot change the winner.
        threshold: probability that the leader must reach for `beta` and `confidence`, 0.5..1.
        min_votes: votes that `beta` and `confidence` need at least.
        window: samples of one window.
        weight: what a vote weighs: `count` 1, `confidence`, or the verifier's `score`.
        confidence_from: a sample's confidence is the geometric mean of its tokens' probabilities (`logprob`)
            or the verifier's `score`, to the power of `sharpness`; or `both`: the former to that power, times
            the score.
        sharpness: above 1 it takes confidence from all samples, most from the less sure ones.
        tool_vote: `majority` or `refuse`, for samples that call tools.
        give_up_after: complete samples without a vote that end the search, if those with one are fewer.
        max_retries: how many failed samples are replaced.

    Raises:
        ValueError: a value is out of its range.
    """

    n: int = 16
    width: int = 4
    first: int = 0
    pace: Literal["full", "needed"] = "full"
    stop: Literal["beta", "window", "confidence", "none"] = "beta"
    threshold: float = 0.95
    min_votes: int = 2
    window: int = 4
    weight: Literal["count", "confidence", "score"] = "count"
    confidence_from: Literal["logprob", "score", "both"] = "logprob"
    sharpness: float = 1.0
    tool_vote: ToolVoting = "majority"
    give_up_after: int = 2
    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_int("first", self.first, 0, MAX_SAMPLES)
        require_one_of("pace", self.pace, ("full", "needed"))
        require_one_of("stop", self.stop, ("beta", "window", "confidence", "none"))
        require_float("threshold", self.threshold, 0.5, 1.0)
        require_int("min_votes", self.min_votes, 1, MAX_SAMPLES)
        require_int("window", self.window, 2, MAX_SAMPLES)
        require_one_of("weight", self.weight, ("count", "confidence", "score"))
        require_one_of("confidence_from", self.confidence_from, ("logprob", "score", "both"))
        require_float("sharpness", self.sharpness, 0.0, MOST_SHARPNESS)
        require_one_of("tool_vote", self.tool_vote, TOOL_VOTING)
        require_int("give_up_after", self.give_up_after, 1, MAX_SAMPLES)
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)

    @property
    def uses_confidence(self) -> bool:
        return self.stop == "confidence" or self.weight == "confidence"

    @property
    def needs_score(self) -> bool:
        """Whether the verifier is asked."""
        return self.weight == "score" or (self.uses_confidence and self.confidence_from != "logprob")

    def rules(self) -> dict[str, StoppingRule]:
        """The rules that end the vote, by the reason that is given for it."""
        rules: dict[str, StoppingRule] = {"decided": DecidedStop()}
        match self.stop:
            case "beta":
                rules["confident"] = BetaStop(self.threshold, self.min_votes)
            case "window":
                rules["agreed"] = WindowStop(self.window)
            case "confidence":
                rules["confident"] = ConfidenceStop(self.threshold, self.min_votes)
        return rules


class SelfConsistency(SampleSearch):
    """See the module's docstring.

    `gain()`: the probability, by the Beta posterior, that the leader is not the more probable of the two
    strongest answers, per expected tokens of one more sample. It is an upper bound of what one sample can
    do, good for comparing searches. Before the first vote it is 1 per expected tokens.
    """

    def __init__(self, params: SelfConsistencyParams, ground: Ground) -> None:
        by_logprob = params.uses_confidence and params.confidence_from != "score"
        verify: Literal["score", "none"] = "score" if params.needs_score else "none"
        super().__init__(
            ground,
            Plan(params.n, params.width, params.max_retries, verify=verify, logprobs=int(by_logprob)),
        )
        self._params = params
        self._rules = params.rules()
        self._answers, self._calls = Ballot(), Ballot()
        self._kinds = ToolVote(params.tool_vote)
        self._taken: set[int] = set()
        self._logprobs: dict[int, MeanLogprob] | None = {} if by_logprob else None
        self._set_pace()

    @property
    def _ballot(self) -> Ballot:
        return self._calls if self._kinds.calls else self._answers

    @property
    def _standing(self) -> Standing | None:
        return self._ballot.standing()

    def tell(self, event: Event) -> list[CallId]:
        cancels = super().tell(event)
        if not isinstance(event, Chunk) and not self.finished:
            self._set_pace()
        return cancels

    def best(self) -> Candidate | None:
        return None if self._stop_reason == REFUSED else super().best()

    def _spoils(self, sample: Sample, chunk: Chunk) -> str | None:
        if self._logprobs is not None:
            self._logprobs.setdefault(sample.index, MeanLogprob()).add(chunk.logprobs)
        return None

    def _take(self, sample: Sample) -> list[CallId]:
        if sample.index not in self._taken:
            self._taken.add(sample.index)
            self._kinds.take(calls_tools=sample.calls_tools)
        if sample.key is not None and not (sample.calls_tools and self._params.tool_vote == "refuse"):
            ballot = self._calls if sample.calls_tools else self._answers
            confidence = self._confidence(sample)
            weight = {"count": 1.0, "confidence": confidence, "score": sample.score}[self._params.weight]
            ballot.add(
                sample.key,
                sample.index,
                UNSCORED if weight is None else weight,
                confidence,
                open=sample.scoring in (Scoring.WANTED, Scoring.ASKED),
            )
        return []

    def _confidence(self, sample: Sample) -> float | None:
        if not self._params.uses_confidence:
            return None
        source, sharpness = self._params.confidence_from, self._params.sharpness
        own: float | None = sample.score
        if self._logprobs is not None:
            own = self._logprobs.get(sample.index, MeanLogprob()).probability
        if own is None or (source == "both" and sample.score is None):
            return None
        sure = float(own**sharpness)
        return sure * (sample.score or 0.0) if source == "both" else sure

    def _merge(self, key: str, into: str) -> None:
        self._answers.merge(key, into)

    def _choose(self) -> Candidate | None:
        standing = self._standing
        if standing is None:
            # Calls that are no majority, or are refused, are not the answer, even where no text has one.
            texts = [s for s in self._complete if not s.calls_tools]
            if not texts:
                return None
            sample = first_by_visibility(texts)
            return Candidate(sample.nodes[-1], None, None, complete=True, begin=self._begin)
        sample = min((self._rollout.samples[i] for i in standing.samples), key=rank)
        return Candidate(
            sample.nodes[-1],
            sample.answer,
            standing.key,
            complete=True,
            score=sample.score,
            support=standing.share,
            tie=standing.tie,
            begin=self._begin,
        )

    def _enough(self) -> str | None:
        voted = len(self._answers) + len(self._calls)
        silent = len(self._ended) - voted
        if silent >= self._params.give_up_after and silent > voted:
            return REFUSED if self._kinds.only_refused else "no_answers"
        ballot, remaining = self._ballot, self._rollout.remaining
        for reason, rule in self._rules.items():
            exact = reason == "decided"
            kind = self._kinds.decided(remaining) if exact else self._kinds.clear(self._params.threshold)
            if kind and len(ballot) and rule.stops(ballot, remaining):
                return reason
        return None

    def _all_done(self) -> str:
        return REFUSED if self._kinds.only_refused else super()._all_done()

    def _set_pace(self) -> None:
        """How many samples may be under way. Those that wait for their score still take a place."""
        rollout = self._rollout
        scoring = sum(s.scoring in (Scoring.WANTED, Scoring.ASKED) for s in rollout.samples)
        width = self._params.width - scoring
        if self._params.first:
            over = sum(s.state in (State.COMPLETE, State.TRUNCATED) for s in rollout.samples)
            if over - scoring < self._params.first:
                width = min(width, self._params.first - over)
        if self._params.pace == "needed" and width > 0:
            under_way = rollout.under_way
            new = range(len(rollout.samples), len(rollout.samples) + width)
            coming = [*under_way, *new][: max(width, len(under_way))]
            needed = least_votes(tuple(self._rules.values()), self._ballot, coming, rollout.remaining)
            width = min(width, needed - scoring)
        rollout.width = width

    def _fate_of(self, sample: Sample) -> tuple[str, str]:
        fate, reason = super()._fate_of(sample)
        refused = sample.calls_tools and self._params.tool_vote == "refuse"
        return fate, "it calls tools, which is refused here" if refused else reason

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        if sample.key == chosen.key:
            return "agreed", "the same answer as the chosen one"
        if sample.calls_tools and not self._kinds.calls:
            return "outvoted", "it calls tools, which most samples do not"
        return "outvoted", self._why_chosen(chosen)

    def _why_chosen(self, chosen: Candidate) -> str:
        standing = self._standing
        if standing is None:
            return "the first complete text; no sample wrote a final answer"
        votes = f"{len(standing.samples)} of {len(self._ballot)} votes"
        if self._params.weight != "count":
            votes += f", {standing.share:.0%} of their weight,"
        votes += f" for {chosen.answer}"
        return f"{votes}, a tie that the earliest sample decides" if chosen.tie else votes

    def _expected_gain(self) -> float:
        return 1.0 if self._standing is None else float(1 - lead_probability(*counts(self._ballot)))
