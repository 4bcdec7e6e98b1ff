"""A technique over steps and the random world it is put into."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from search.beam import BeamParams
from search.contract import Costs, Event, Generate, Generated, Search
from search.dvts import DvtsParams
from search.extract import ThinkingMarkers
from search.ground import Phrase
from search.log import Header
from search.mcts import MctsParams
from search.particle import ParticleParams
from search.rebase import RebaseParams
from search.sample import SampleLimits
from search.segments import THINK_CLOSE
from tests.search.drive import PROMPT
from tests.search.steps_world import StepWorld

NAMES = {
    BeamParams: "beam",
    DvtsParams: "dvts",
    RebaseParams: "rebase",
    MctsParams: "mcts",
    ParticleParams: "particle",
}
AMPLE = 100_000
CONTEXT = 90
CLOSE = Phrase((7, 8), "</think>\n")


@dataclass(frozen=True)
class Case:
    """A technique and the world it is put into.

    Args:
        failing: of 16 calls, so many fail.
        begins: what every path begins with.
    """

    params: Any
    seed: int
    depth: int
    choices: int
    length: int
    endless: bool
    failing: int
    tokens: int
    kv_tokens: int
    slots: int
    score_tokens: int
    squeeze: bool
    releases: float
    limit: int
    step_tokens: int
    whole: bool
    equate: bool
    begins: str

    @property
    def header(self) -> Header:
        limits = SampleLimits(
            max_new_tokens=self.limit,
            context_tokens=len(PROMPT) + CONTEXT,
            thinking=ThinkingMarkers(),
            whole=self.whole,
            step_ends=("\n",),
            step_tokens=self.step_tokens,
            equate=self.equate,
        )
        return Header(
            NAMES[type(self.params)],
            self.params,
            limits,
            Costs(self.score_tokens),
            self.seed,
            PROMPT,
            {THINK_CLOSE: CLOSE},
        )

    @property
    def world(self) -> TreeWorld:
        return TreeWorld(
            [],
            costs=Costs(self.score_tokens),
            tokens=self.tokens,
            kv_tokens=len(PROMPT) + self.kv_tokens,
            slots=self.slots,
            rng=random.Random(self.seed),
            squeeze=self.squeeze,
            late=True,
            releases=self.releases,
            depth=self.depth,
            choices=self.choices,
            length=self.length,
            worth=worth,
            fails=lambda call, _: draw(self.seed, call.id) % 16 < self.failing,
            endless=self.endless,
            begins=self.begins,
            same=lambda a, b: None if draw(0, len(a), len(b)) % 3 == 0 else sorted(a) == sorted(b),
        )


def draw(*numbers: int) -> int:
    return hashlib.blake2b(repr(numbers).encode(), digest_size=1).digest()[0]


def worth(choices: Sequence[int]) -> float:
    return draw(*choices) / 255


@dataclass
class TreeWorld(StepWorld):
    """A world of steps that keeps track of the answers that were completed, by node."""

    begins: str = ""
    answers: set[int] | None = None

    def piece(self, at: int, step: int, choices: Sequence[int]) -> str:
        begins = self.begins if step == at == 0 else ""
        return begins + super().piece(at, step, choices)

    def tell(self, search: Search, event: Event) -> list[int]:
        call = self.in_flight.get(event.call)
        cancels = super().tell(search, event)
        if isinstance(event, Generated) and event.finish == "stop" and isinstance(call, Generate):
            self.answers = (self.answers or set()) | {call.node}
        return cancels
