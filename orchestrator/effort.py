"""From an effort level to a technique: a static table for now, the same for every model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.request import Effort


@dataclass(frozen=True, slots=True)
class Choice:
    """A technique with its parameters, and why it was taken."""

    technique: str
    params: Mapping[str, object]
    why: str


_SINGLE = Choice("single", {}, "one pass")

# Tuned on problems of the tiny reasoner that are not held out (infra.bench.vote_record, vote_study).
_VOTE: Mapping[str, object] = MappingProxyType(
    {"width": 4, "pace": "needed", "stop": "confidence", "weight": "confidence", "min_votes": 1}
)
_WITH_REWARD: Mapping[str, object] = MappingProxyType(
    {**_VOTE, "n": 10, "confidence_from": "both", "threshold": 0.8, "sharpness": 3}
)
_WITHOUT: Mapping[str, object] = MappingProxyType(
    {**_VOTE, "n": 8, "confidence_from": "logprob", "threshold": 0.9, "sharpness": 2}
)
_WHY = "vote that stops when it is sure"

_SCORED: Mapping[Effort, Choice] = MappingProxyType(
    {
        "auto": Choice("self_consistency", _WITH_REWARD, _WHY),
        "low": _SINGLE,
        "medium": Choice("self_consistency", _WITH_REWARD, _WHY),
        "high": Choice("best_of_n", {"n": 16}, "16 samples weighed by the process reward"),
        "max": Choice("best_of_n", {"n": 32, "width": 32}, "32 samples weighed by the process reward"),
    }
)
_UNSCORED: Mapping[Effort, Choice] = MappingProxyType(
    {
        "auto": Choice("self_consistency", _WITHOUT, _WHY),
        "medium": Choice("self_consistency", _WITHOUT, _WHY),
        "high": Choice("self_consistency", {"n": 16, "width": 8}, "no process reward here: a vote of 16"),
        "max": Choice("self_consistency", {"n": 32, "width": 16}, "no process reward here: a vote of 32"),
    }
)


def choose(effort: Effort, *, can_score: bool, greedy: bool) -> Choice:
    """The table's choice.

    Args:
        can_score: the model has a process reward.
        greedy: the client asked for temperature 0, so that all samples would be the same.
    """
    scored = _SCORED[effort]
    choice = scored if can_score else _UNSCORED.get(effort, scored)
    if greedy and choice.technique != "single":
        return Choice("single", {}, f"temperature 0 makes all samples equal; effort {effort} draws one")
    return Choice(choice.technique, dict(choice.params), f"effort {effort}: {choice.why}")
