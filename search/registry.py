"""The techniques by name.

What a technique's params may tell of themselves, beside their fields:
- fields of the type `Stage`, or tuples of it: inner techniques. They are checked, and their needs, phrases
  and tokens added up, by what is here.
- `most_samples() -> int`: so many whole paths' worth of tokens are written at most; and
  `most_compares() -> int`. What holds without them stands in `search.bounds`.
- `most_tokens(bounds, inner) -> int`: instead of all that, for composites.
- `phrases() -> Mapping[str, Turn | str]`: texts that it may write itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from search.beam import Beam, BeamParams
from search.best_of_n import BestOfNParams
from search.best_of_n_make import make_best_of_n
from search.bounds import Bounds, most_tokens
from search.cascade import Cascade, CascadeParams
from search.contract import Costs, Search
from search.deepconf import DeepConf, DeepConfParams
from search.dvts import Dvts, DvtsParams
from search.ground import NO_PHRASES, Ground, Phrase, Turn
from search.mcts import Mcts, MctsParams
from search.nesting import MAX_DEPTH, BadParam, Stage, stages_of
from search.nesting_params import read_params
from search.particle import Particle, ParticleParams
from search.rebase import Rebase, RebaseParams
from search.refine import Refine, RefineParams
from search.sample import SampleLimits
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from search.single import Single, SingleParams

Need: TypeAlias = Literal["score", "check", "compare"]
NOTHING: frozenset[Need] = frozenset()
SCORE: frozenset[Need] = frozenset({"score"})
CHECK: frozenset[Need] = frozenset({"check"})


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique.

    Args:
        name: how it is asked for.
        summary: one line.
        params_type: its frozen params dataclass; all its fields have defaults.
        make: its constructor.
        own_needs: what a search with these params asks for itself beside generations.
    """

    name: str
    summary: str
    params_type: type[Any]
    make: Callable[[Any, Ground], Search]
    own_needs: Callable[[Any], frozenset[Need]]

    def check(self, params: Any) -> None:
        """Check the inner techniques that params name, and theirs.

        Raises:
            BadParam: a technique is unknown, a parameter refused, or too many are within one another.
        """
        _inner(params)

    def needs(self, params: Any) -> frozenset[Need]:
        """What a search with these params, and those within it, ask for beside generations.

        Raises:
            BadParam: as `check`.
        """
        return self.own_needs(params).union(*(t.needs(p) for t, p in _inner(params)))

    def phrases(self, params: Any) -> Mapping[str, Turn | str]:
        """Texts that a search with these params, and those within it, may write themselves, by name.

        The marks of thinking are the model's own and not among them.

        Raises:
            BadParam: as `check`.
        """
        own = getattr(params, "phrases", None)
        found: dict[str, Turn | str] = {} if own is None else dict(own())
        for technique, inner in _inner(params):
            found |= technique.phrases(inner)
        return found

    def most_tokens(
        self,
        params: Any,
        limits: SampleLimits,
        costs: Costs,
        prompt_tokens: int,
        phrases: Mapping[str, Phrase] = NO_PHRASES,
    ) -> int:
        """Charged tokens of a search beyond its prompt, at most; see `search.bounds` for how it is bounded.

        Raises:
            BadParam: as `check`.
        """
        self.check(params)
        return self._most(params, Bounds(limits, costs, prompt_tokens, phrases))

    def _most(self, params: Any, bounds: Bounds) -> int:
        own = getattr(params, "most_tokens", None)
        return (
            int(own(bounds, _most_of)) if own is not None else most_tokens(params, self.needs(params), bounds)
        )

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
            ValueError: the prompt fills the context, an inner technique is refused (`BadParam`), or the
                technique cannot do with these limits and phrases what the params ask for.
        """
        if not isinstance(params, self.params_type):
            raise TypeError(f"{self.name} takes {self.params_type.__name__}, not {type(params).__name__}")
        self.check(params)
        return self.make(params, Ground.of(prompt_ids, limits, costs, seed, phrases))


def resolve(stage: Stage) -> tuple[Technique, Any]:
    """The technique that a stage names, and its params.

    Raises:
        BadParam: the technique is unknown, or a parameter refused.
    """
    return _resolved(stage, "")


def nest(stage: Stage, ground: Ground) -> Search:
    """The search of a stage that was checked; see `search.nesting.Nest`."""
    technique, params = _resolved(stage, "")
    return technique.make(params, ground)


def _resolved(stage: Stage, path: str) -> tuple[Technique, Any]:
    at = f"{path}." if path else ""
    technique = TECHNIQUES.get(stage.technique)
    if technique is None:
        shown = stage.technique[:64].encode("ascii", "backslashreplace").decode()
        raise BadParam(f"{at}technique", f"must be one of {', '.join(TECHNIQUES)}, not {shown!r}")
    return technique, read_params(technique.params_type, stage.params, f"{at}params")


def _inner(params: Any, path: str = "", depth: int = 1) -> list[tuple[Technique, Any]]:
    """The techniques that params name and their params; all within them are checked too."""
    found: list[tuple[Technique, Any]] = []
    for name, stage in stages_of(params):
        at = f"{path}{name}"
        if depth >= MAX_DEPTH:
            raise BadParam(at, f"at most {MAX_DEPTH} techniques may be within one another")
        technique, inner = _resolved(stage, at)
        _inner(inner, f"{at}.params.", depth + 1)
        found.append((technique, inner))
    return found


def _most_of(stage: Stage, bounds: Bounds) -> int:
    technique, params = _resolved(stage, "")
    return technique._most(params, bounds)


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
                lambda p: SCORE if p.needs_score else NOTHING,
            ),
            Technique(
                "best_of_n",
                "Samples ranked by a verifier or a judge; the best, or the best-supported answer.",
                BestOfNParams,
                make_best_of_n,
                lambda p: frozenset({p.by}),
            ),
            Technique(
                "deepconf",
                "A vote weighed by the model's own confidence; unsure samples are filtered as they run.",
                DeepConfParams,
                DeepConf,
                lambda _: NOTHING,
            ),
            Technique(
                "beam",
                "Steps scored by a verifier; the best of each depth are gone on from.",
                BeamParams,
                Beam,
                lambda _: SCORE,
            ),
            Technique(
                "dvts",
                "Independent subtrees of steps, each goes on from its best one.",
                DvtsParams,
                Dvts,
                lambda _: SCORE,
            ),
            Technique(
                "rebase",
                "A budget of paths shared over the steps of each depth by their scores.",
                RebaseParams,
                Rebase,
                lambda _: SCORE,
            ),
            Technique(
                "mcts",
                "Tree search over steps that goes wider or deeper by what pays.",
                MctsParams,
                Mcts,
                lambda _: SCORE,
            ),
            Technique(
                "particle",
                "Paths resampled after each step by their scores.",
                ParticleParams,
                Particle,
                lambda _: SCORE,
            ),
            Technique(
                "refine",
                "An answer, criticised and revised in turns until that changes nothing.",
                RefineParams,
                lambda p, ground: Refine(p, ground, nest),
                lambda p: (CHECK if p.check else NOTHING) | (SCORE if p.accept == "scored" else NOTHING),
            ),
            Technique(
                "cascade",
                "Cheap searches first; dearer ones where their answers do not convince.",
                CascadeParams,
                lambda p, ground: Cascade(p, ground, nest),
                lambda p: CHECK if p.check else NOTHING,
            ),
        )
    }
)
