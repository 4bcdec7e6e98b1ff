"""DeepConf: votes weighed by the model's own confidence, and unsure samples filtered, even while they run.

Algorithm: the confidence of a token is minus the mean log-probability of the `top` likeliest tokens at its
place; that of a group, the mean over `window` tokens in a row.
`mode="offline"`: all `n` samples are drawn. The `eta` percent with the highest confidence by `measure` (the
lowest group's, that of the last `window` tokens, the mean of the lowest `bottom_percent` of the groups, or
of all tokens) vote, each with that confidence as its weight.
`mode="online"`: `warmup` samples are drawn first. The bar is what the lowest group confidence of `eta`
percent of them reaches. A later sample is ended as soon as one of its groups falls below the bar. Samples
above it vote with their lowest group confidence, and the vote ends by consensus, when the leader has the
share `tau`.
When the filter leaves no answer, all answers vote. Without any confidences it is a plain vote. Equal weights
go to the earliest sample.

Source: Fu et al., "Deep Think with Confidence", 2025 (arXiv 2508.15260), sections 3.1 to 3.3; there `top` is
20, `window` 2048, `warmup` 16, `tau` 0.95, and `eta` 10 or 90.

Known limits: the model must be less sure where it goes wrong. Texts shorter than `window` are one group, and
are judged at their end alone. With `top` = 1, and on an engine that gives no more, the probability of the
token that was drawn takes the place of its confidence: it is coarser. Warm-up samples are never cut short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from search.ballot import Ballot, Standing
from search.confidence import TraceConfidence, percentile, token_confidences
from search.contract import CallId, Candidate, Chunk, Event
from search.ground import Ground
from search.params import MAX_SAMPLES, require_float, require_int, require_one_of
from search.rollout import Plan
from search.sample import Sample, State
from search.sampling import SampleSearch, first_by_visibility

Measure: TypeAlias = Literal["lowest", "tail", "bottom", "mean"]
MEASURES: tuple[Measure, ...] = ("lowest", "tail", "bottom", "mean")
MOST_TOP = 20
MOST_WINDOW = 8192
_UNDER_WAY = (State.RUNNING, State.WAITING)


@dataclass(frozen=True, slots=True)
class DeepConfParams:
    """Parameters of `DeepConf`.

    Args:
        n: samples at most.
        width: how many run at once.
        mode: `offline` or `online`.
        eta: percent of the samples that are kept: of all, or of the warm-up ones.
        window: tokens of one group.
        measure: the confidence of a finished sample when `offline`; `online` it is always `lowest`.
        bottom_percent: percent of the groups that `bottom` takes.
        top: likeliest tokens asked for at each place; 1 for the drawn token's probability alone.
        warmup: samples drawn before any is filtered, when `online`.
        tau: share of the weight that ends an `online` vote.
        max_retries: how many failed samples are replaced.

    Raises:
        ValueError: a value is out of its range.
    """

    n: int = 16
    width: int = 8
    mode: Literal["offline", "online"] = "online"
    eta: float = 90.0
    window: int = 2048
    measure: Measure = "lowest"
    bottom_percent: float = 10.0
    top: int = 20
    warmup: int = 4
    tau: float = 0.95
    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("n", self.n, 1, MAX_SAMPLES)
        require_int("width", self.width, 1, MAX_SAMPLES)
        require_one_of("mode", self.mode, ("offline", "online"))
        require_float("eta", self.eta, 1.0, 100.0)
        require_int("window", self.window, 1, MOST_WINDOW)
        require_one_of("measure", self.measure, MEASURES)
        require_float("bottom_percent", self.bottom_percent, 0.1, 100.0)
        require_int("top", self.top, 1, MOST_TOP)
        require_int("warmup", self.warmup, 1, MAX_SAMPLES)
        require_float("tau", self.tau, 0.5, 1.0)
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)
        if self.mode == "online" and self.measure != "lowest":
            raise ValueError(f"measure must be lowest with mode=online, not {self.measure!r}")


class DeepConf(SampleSearch):
    """See the module's docstring.

    `gain()`: the share of the weight that the leader lacks, shared with the votes so far, per expected
    tokens of one more sample: an upper bound, good for comparing searches.
    """

    def __init__(self, params: DeepConfParams, ground: Ground) -> None:
        super().__init__(ground, Plan(params.n, params.width, params.max_retries, logprobs=params.top))
        self._params = params
        self._traces: dict[int, TraceConfidence] = {}
        self._confidences: dict[int, float] = {}  # of the complete samples with text
        self._kept: set[int] = set()
        self._bar: float | None = None
        self._ballot = Ballot()
        self._set_width()

    def tell(self, event: Event) -> list[CallId]:
        cancels = super().tell(event)
        if not isinstance(event, Chunk):
            self._set_width()
        return cancels

    @property
    def _warm(self) -> bool:
        """Whether the warm-up is over."""
        return self._over >= min(self._params.warmup, self._params.n)

    @property
    def _over(self) -> int:
        over = (State.COMPLETE, State.TRUNCATED, State.FILTERED)
        return sum(s.state in over for s in self._rollout.samples)

    def _set_width(self) -> None:
        """The warm-up comes before all others; what failed in it is drawn again as long as it may be."""
        width = self._params.width
        if self._params.mode == "online" and not self._warm:
            width = min(width, self._params.warmup - self._over)
        self._rollout.width = width
        for number in [i for i in self._traces if self._rollout.samples[i].state not in _UNDER_WAY]:
            del self._traces[number]

    def _spoils(self, sample: Sample, chunk: Chunk) -> str | None:
        trace = self._traces.get(sample.index)
        if trace is None:
            trace = self._traces[sample.index] = TraceConfidence(self._params.window)
        bar = self._bar if self._params.mode == "online" and self._warm else None
        for confidence in token_confidences(chunk):
            trace.add(confidence)
            group = trace.group
            if bar is not None and group is not None and group < bar:
                del self._traces[sample.index]
                return f"its group confidence {group:.3f} fell below {bar:.3f}"
        return None

    def _take(self, sample: Sample) -> list[CallId]:
        trace = self._traces.pop(sample.index, None)
        self._confidences[sample.index] = 0.0 if trace is None else self._measure(trace)
        self._count()
        return []

    def _measure(self, trace: TraceConfidence) -> float:
        measure = "lowest" if self._params.mode == "online" else self._params.measure
        match measure:
            case "lowest":
                return trace.lowest
            case "tail":
                return trace.tail
            case "bottom":
                return trace.bottom(self._params.bottom_percent)
            case "mean":
                return trace.mean

    def _count(self) -> None:
        """Filter and count anew: each sample that ends may move the bar."""
        warmup = min(self._params.warmup, self._params.n)
        if self._params.mode == "offline":
            least = math.ceil(len(self._confidences) * self._params.eta / 100)
            ranked = sorted(self._confidences, key=lambda i: (-self._confidences[i], i))
            self._kept = set(ranked[:least])
            self._bar = self._confidences[ranked[least - 1]]
        else:
            first = sorted(self._confidences)[:warmup]
            self._bar = percentile([self._confidences[i] for i in first], 100 - self._params.eta)
            self._kept = {i for i, c in self._confidences.items() if c >= self._bar}
        answered = [s for s in self._complete if s.key is not None]
        voters = [s for s in answered if s.index in self._kept] or answered
        known = any(self._confidences[s.index] > 0 for s in voters)
        self._ballot = Ballot()
        for sample in sorted(voters, key=lambda s: s.index):
            weight = self._confidences[sample.index] if known else 1.0
            self._ballot.add(sample.key or "", sample.index, weight)

    def _merge(self, key: str, into: str) -> None:
        self._count()

    def _standing(self) -> Standing | None:
        return self._ballot.standing()

    def _choose(self) -> Candidate:
        standing = self._standing()
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
        standing = self._standing()
        if self._params.mode == "offline" or standing is None or not self._warm:
            return None
        return "consensus" if standing.share >= self._params.tau else None

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        own = self._confidences[sample.index]
        if sample.index not in self._kept and sample.index not in self._voters():
            return "filtered", f"its confidence {own:.3f} is below {self._bar:.3f}"
        if sample.key == chosen.key:
            return "agreed", "the same answer as the chosen one"
        return "outvoted", self._why_chosen(chosen)

    def _voters(self) -> set[int]:
        return {number for group in self._ballot.groups() for number in group.votes}

    def _why_chosen(self, chosen: Candidate) -> str:
        standing = self._standing()
        if standing is None:
            return "the first complete text; no sample wrote a final answer"
        why = f"{standing.share:.0%} of the confidence of {len(self._ballot)} samples is for {chosen.answer}"
        return f"{why}, a tie that the earliest sample decides" if chosen.tie else why

    def _expected_gain(self) -> float:
        standing = self._standing()
        return 1.0 if standing is None else (1.0 - standing.share) / (len(self._ballot) + 1)
