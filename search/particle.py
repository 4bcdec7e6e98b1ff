"""Particle filtering: paths are resampled after every step by how likely the verifier finds them.

Algorithm: `particles` paths each write one step and are scored. A path's weight is multiplied by the odds of
its score, score / (1 - score), to the power of 1 / `temperature`. When the effective sample size
1 / sum(weight²) of the weights, scaled to sum to 1, is below `ess_threshold` of the paths that go on, these
are resampled (systematic resampling) and their weights made equal: a good path is gone on from several times,
a bad one never. A path that ends keeps its place and leaves the rest to the others; one that is cut off or
lost leaves its place to them.

There is a barrier at each step, and it is inherent: a resampling needs the weights of all.

Sources: Puri et al., "A Probabilistic Inference Approach to Inference-Time Scaling of LLMs using
Particle-Based Monte Carlo Methods", 2025 (arXiv 2502.01618), for the model and the weights; its authors'
library resamples at every step (`ess_threshold` 1) with replacement, ended paths among them. Kitagawa, "Monte
Carlo Filter and Smoother for Non-Gaussian Nonlinear State Space Models", 1996, for systematic resampling; Liu
and Chen, "Blind Deconvolution via Sequential Imputations", 1995, for the effective sample size.

Known limits: each step takes as long as its slowest path. With few paths and a sure verifier, all soon stem
from one step; a higher `temperature` or a lower `ess_threshold` keeps more of them. Steps without a score
(the verifier failed) count as average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from search.contract import CallId
from search.ground import Ground
from search.params import MAX_SAMPLES, require_float, require_int
from search.seeds import derive_seed
from search.step import ROOT_STEP, Step, StepState
from search.stepwise import StepParams, StepSearch

SURE = 1e-6
"""Scores are taken to lie within 0 and 1 by at least this, so that their odds are finite."""


@dataclass(frozen=True, slots=True)
class ParticleParams(StepParams):
    """Parameters of `Particle`, beside those of `StepParams`.

    Args:
        particles: paths.
        temperature: how evenly they are resampled.
        ess_threshold: they are resampled when the effective sample size is below this share of them; 1 for
            whenever weights differ, 0 for only when a path was lost or cut off.

    Raises:
        ValueError: a value is out of its range.
    """

    particles: int = 8
    temperature: float = 1.0
    ess_threshold: float = 1.0

    def __post_init__(self) -> None:
        StepParams.__post_init__(self)
        require_int("particles", self.particles, 1, MAX_SAMPLES)
        require_float("temperature", self.temperature, 0.01, 100.0)
        require_float("ess_threshold", self.ess_threshold, 0.0, 1.0)


class Particle(StepSearch):
    """See the module's docstring."""

    def __init__(self, params: ParticleParams, ground: Ground) -> None:
        # Two particles at one place are still two.
        super().__init__(ground, params, merge_twins=False)
        self._params = params
        self._seed = ground.seed
        self._places = params.particles  # of those that have not ended
        self._due = params.particles
        self._generation = 0
        self._open: list[Step] = []
        self._log_weights: dict[int, float] = {}  # by the step that is gone on from
        self._demand.want(ROOT_STEP, params.particles)

    def _take(self, step: Step) -> list[CallId]:
        if self._retry(step):
            return []
        self._due -= 1
        if step.state is StepState.OPEN:
            self._open.append(step)
        elif step.state is StepState.COMPLETE:
            self._places -= 1
        return [] if self._due else self._resample()

    def _resample(self) -> list[CallId]:
        """All are back: decide how often each is gone on from."""
        steps = sorted(self._open, key=lambda s: s.index)  # whatever order they came back in
        self._open = []
        self._generation += 1
        if not steps or not self._places:
            return self._stepper.prune(steps, "all places are taken by paths that ended")
        logs = self._weigh(steps)
        top = max(logs)
        weights = [exp(each - top) for each in logs]
        size = sum(weights) ** 2 / sum(w * w for w in weights)
        if size < self._params.ess_threshold * len(steps) or len(steps) != self._places:
            u = derive_seed(self._seed, self._generation, 1 << 21) / 2**31
            counts = systematic(weights, self._places, u)
            logs = [0.0] * len(steps)
        else:
            counts = [1] * len(steps)
        self._log_weights = {step.index: each for step, each in zip(steps, logs, strict=True)}
        self._due = self._places
        for step, count in zip(steps, counts, strict=True):
            if count:
                self._demand.want(step, count)
        left = [step for step, count in zip(steps, counts, strict=True) if not count]
        return self._stepper.prune(left, "it was not drawn when the paths were resampled")

    def _weigh(self, steps: Sequence[Step]) -> list[float]:
        """The logarithm of each path's weight since the last resampling."""
        scored = {s.index: self._log_odds(s) for s in steps if s.score is not None}
        average = sum(scored.values()) / len(scored) if scored else 0.0
        before = [0.0 if s.parent is None else self._log_weights[s.parent.index] for s in steps]
        return [b + scored.get(s.index, average) for b, s in zip(before, steps, strict=True)]

    def _log_odds(self, step: Step) -> float:
        score = min(1.0 - SURE, max(SURE, self.value(step)))
        return log(score / (1.0 - score)) / self._params.temperature


def systematic(weights: Sequence[float], places: int, u: float) -> list[int]:
    """How often each is drawn when `places` are filled at even distances.

    The first of them is at `u` (0 <= u < 1) of such a distance.

    Each count is its share of the places, rounded up or down. The weights are >= 0 and not all 0.
    """
    counts: list[int] = []
    whole, reached, filled = sum(weights), 0.0, 0
    for weight in weights:
        reached += weight
        until = filled
        while until < places and (until + u) * whole < reached * places:
            until += 1
        counts.append(until - filled)
        filled = until
    # The sum may fall short of itself by a rounding.
    counts[max(range(len(counts)), key=lambda i: weights[i])] += places - filled
    return counts
