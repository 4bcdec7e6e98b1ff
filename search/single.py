"""Single: one sample, no search.

Algorithm: draw one sample; its final answer is the answer. The baseline against which every technique is
measured, and what the policy chooses when searching does not pay.

Parameters: `max_retries`, how often a sample that an engine failed is drawn again.

Known limits: nothing is known about how sure the answer is; `support` is always 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from search.contract import CallId, Candidate
from search.ground import Ground
from search.params import MAX_SAMPLES, require_int
from search.rollout import Plan
from search.sample import Sample
from search.sampling import SampleSearch, first_by_visibility


@dataclass(frozen=True, slots=True)
class SingleParams:
    """Parameters of `Single`.

    Args:
        max_retries: how many failed samples are replaced.

    Raises:
        ValueError: a value is out of its range.
    """

    max_retries: int = 2

    def __post_init__(self) -> None:
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)


class Single(SampleSearch):
    """See the module's docstring."""

    def __init__(self, params: SingleParams, ground: Ground) -> None:
        super().__init__(ground, Plan(1, 1, params.max_retries))

    def _take(self, sample: Sample) -> list[CallId]:
        return []

    def _merge(self, key: str, into: str) -> None:
        return

    def _choose(self) -> Candidate:
        sample = first_by_visibility(self._complete)
        return Candidate(sample.nodes[-1], sample.answer, sample.key, complete=True, begin=self._begin)

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        return "agreed", "not reached: there is only one complete sample"

    def _why_chosen(self, chosen: Candidate) -> str:
        return "the only sample"

    def _expected_gain(self) -> float:
        # Until its one sample has ended there is no answer at all.
        return 1.0
