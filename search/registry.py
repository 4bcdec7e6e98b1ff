"""The techniques by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from search.best_of_n import BestOfN, BestOfNParams
from search.contract import Costs, Search
from search.sample import SampleLimits
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from search.single import Single, SingleParams


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique.

    Args:
        name: how it is asked for.
        summary: one line.
        params_type: its frozen params dataclass; all its fields have defaults.
        make: its constructor.
        needs_score: whether a search with these params asks for `Score` calls.
    """

    name: str
    summary: str
    params_type: type[Any]
    make: Callable[[tuple[int, ...], Any, SampleLimits, Costs, int], Search]
    needs_score: Callable[[Any], bool]

    def build(
        self,
        prompt_ids: tuple[int, ...],
        params: Any,
        limits: SampleLimits,
        costs: Costs,
        seed: int,
    ) -> Search:
        """A new search.

        Args:
            prompt_ids: the prompt's tokens, the generation prompt included.
            params: an instance of `params_type`.
            limits: bounds of every sample.
            costs: what calls other than `Generate` cost.
            seed: everything random in the search follows from it.

        Raises:
            TypeError: `params` is of another technique.
            ValueError: the prompt fills the context.
        """
        if not isinstance(params, self.params_type):
            raise TypeError(f"{self.name} takes {self.params_type.__name__}, not {type(params).__name__}")
        return self.make(prompt_ids, params, limits, costs, seed)


TECHNIQUES: Mapping[str, Technique] = MappingProxyType(
    {
        t.name: t
        for t in (
            Technique("single", "One sample.", SingleParams, Single, lambda _: False),
            Technique(
                "self_consistency",
                "Majority vote over samples, stopped when the majority is clear.",
                SelfConsistencyParams,
                SelfConsistency,
                lambda _: False,
            ),
            Technique(
                "best_of_n",
                "Samples scored by a verifier; the best, or the best-supported answer.",
                BestOfNParams,
                BestOfN,
                lambda _: True,
            ),
        )
    }
)
