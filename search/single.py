"""Single: one sample, no search; its thinking may be cut short or drawn out.

Algorithm: draw one sample; its final answer is the answer. The baseline against which every technique is
measured, and what the policy chooses when searching does not pay. With `think_tokens`, thinking that has
taken so many tokens is closed by force, and the answer is written in what is left. With `think_again`,
thinking that the model ends is made to go on so often: the closing marker is taken back and "Wait" written
in its place (budget forcing).

Source: Muennighoff et al., "s1: Simple test-time scaling", 2025 (arXiv 2501.19393), section 3.1, for both.

Known limits: nothing is known about how sure the answer is; `support` is always 1. Thinking goes on only
where its closing marker begins at a token of its own, while its budget lasts, and in a model that was not
trained for it may change a right answer to a wrong one (Wu, 2025, arXiv 2507.14419). A model that ends its
turn within its thinking gives no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from search.contract import CallId, Candidate
from search.ground import Ground, Turn
from search.params import MAX_SAMPLES, require_int
from search.rollout import Plan
from search.sample import Sample
from search.sampling import SampleSearch, first_by_visibility
from search.segments import THINK_AGAIN, THINK_CLOSE

AGAIN_TEXT = "Wait"
"""What is written where thinking is made to go on."""
MAX_THINK_TOKENS = 1 << 20
MAX_THINK_AGAIN = 16


@dataclass(frozen=True, slots=True)
class SingleParams:
    """Parameters of `Single`.

    Args:
        max_retries: how many failed samples are replaced.
        think_tokens: the most tokens of thinking; None for what the sample has.
        think_again: how often thinking that ends is made to go on.

    Raises:
        ValueError: a value is out of its range.
    """

    max_retries: int = 2
    think_tokens: int | None = None
    think_again: int = 0

    def __post_init__(self) -> None:
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)
        if self.think_tokens is not None:
            require_int("think_tokens", self.think_tokens, 1, MAX_THINK_TOKENS)
        require_int("think_again", self.think_again, 0, MAX_THINK_AGAIN)

    def phrases(self) -> Mapping[str, Turn | str]:
        """Texts that are written beside the model's own marks of thinking."""
        return {THINK_AGAIN: AGAIN_TEXT} if self.think_again else {}


class Single(SampleSearch):
    """See the module's docstring.

    Raises:
        ValueError: thinking is to be bounded or drawn out, and the model's markers or the phrase for it are
            not there.
    """

    def __init__(self, params: SingleParams, ground: Ground) -> None:
        super().__init__(_forced(params, ground), Plan(1, 1, params.max_retries))

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


def _forced(params: SingleParams, ground: Ground) -> Ground:
    """The ground with this thinking budget."""
    wanted = {
        "think_tokens": (params.think_tokens is not None, THINK_CLOSE),
        "think_again": (params.think_again > 0, THINK_AGAIN),
    }
    for name, (asked, phrase) in wanted.items():
        if asked and ground.limits.thinking is None:
            raise ValueError(f"{name} needs a model that marks its thinking, and this one does not")
        if asked and phrase not in ground.phrases:
            raise ValueError(f"{name} needs the phrase {phrase!r}, which is not given")
    limits = ground.limits
    if params.think_tokens is not None:
        limits = replace(limits, think_tokens=params.think_tokens)
    if params.think_again:
        limits = replace(limits, think_again=params.think_again)
    return replace(ground, limits=limits)
