"""What the tests of all techniques over steps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from search.beam import Beam, BeamParams
from search.contract import Costs
from search.dvts import Dvts, DvtsParams
from search.ground import NO_PHRASES, Ground
from search.mcts import Mcts, MctsParams
from search.particle import Particle, ParticleParams
from search.rebase import Rebase, RebaseParams
from search.sample import SampleLimits
from search.step import Step
from search.stepwise import StepSearch
from tests.search.drive import PROMPT
from tests.search.steps_world import STEP_LIMITS, StepWorld

COSTS = Costs(score_tokens=2)
SMALL: dict[str, Callable[..., StepSearch]] = {}
"""Each technique with a budget of about 16 paths; further params by name."""


def ground(limits: SampleLimits = STEP_LIMITS, seed: int = 7, phrases: Any = NO_PHRASES) -> Ground:
    return Ground.of(PROMPT, limits, COSTS, seed, phrases)


def world(**fields: Any) -> StepWorld:
    return StepWorld([], costs=COSTS, **fields)


def steps_of(search: StepSearch) -> list[Step]:
    return search._stepper.steps


def _small(kind: Any, params: Any, **defaults: int) -> Callable[..., StepSearch]:
    def make(on: Ground | None = None, **more: Any) -> StepSearch:
        made: StepSearch = kind(params(**{**defaults, **more}), on or ground())
        return made

    return make


SMALL |= {
    "beam": _small(Beam, BeamParams, width=4, expand=4),
    "dvts": _small(Dvts, DvtsParams, subtrees=4, expand=4),
    "rebase": _small(Rebase, RebaseParams, n=16),
    "mcts": _small(Mcts, MctsParams, expansions=160, answers=16),
    "particle": _small(Particle, ParticleParams, particles=16),
}
