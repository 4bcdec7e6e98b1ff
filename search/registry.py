"""The techniques by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from search.best_of_n import BestOfN, BestOfNParams
from search.contract import Costs, Search
from search.ground import NO_PHRASES, Ground, Phrase
from search.sample import SampleLimits
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from search.single import Single, SingleParams

Need: TypeAlias = Literal["score", "check", "compare"]
NOTHING: frozenset[Need] = frozenset()


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique.

    Args:
        name: how it is asked for.
        summary: one line.
        params_type: its frozen params dataclass; all its fields have defaults.
        make: its constructor.
        needs: what a search with these params asks for beside generations.
    """

    name: str
    summary: str
    params_type: type[Any]
    make: Callable[[Any, Ground], Search]
    needs: Callable[[Any], frozenset[Need]]

    def build(
        self,
        prompt_ids: tuple[int, ...],
        params: Any,
        limits: SampleLimits,
        costs: Costs,
        seed: int,
        phrases: Mapping[str, Phrase] = NO_PHRASES,
    ) -> Search:
        """A new search.

        Args:
            prompt_ids: the prompt's tokens, the generation prompt included.
            params: an instance of `params_type`.
            limits: bounds of every sample.
            costs: what calls other than `Generate` cost.
            seed: everything random in the search follows from it.
            phrases: what it may write itself, by name.

        Raises:
            TypeError: `params` is of another technique.
            ValueError: the prompt fills the context.
        """
        if not isinstance(params, self.params_type):
            raise TypeError(f"{self.name} takes {self.params_type.__name__}, not {type(params).__name__}")
        return self.make(params, Ground.of(prompt_ids, limits, costs, seed, phrases))


TECHNIQUES: Mapping[str, Technique] = MappingProxyType(
    {
        t.name: t
        for t in (
            Technique("single", "One sample.", SingleParams, Single, lambda _: NOTHING),
            Technique(
                "self_consistency",
                "Majority vote over samples, stopped when the majority is clear.",
                SelfConsistencyParams,
                SelfConsistency,
                lambda _: NOTHING,
            ),
            Technique(
                "best_of_n",
                "Samples scored by a verifier; the best, or the best-supported answer.",
                BestOfNParams,
                BestOfN,
                lambda p: frozenset({p.by}),
            ),
        )
    }
)
