"""What is compared, and how much of it: the constants of the benchmark and the table of its sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.bench.search.configs import BEST_STOP, BEST_TREE

N = 16
TEMPERATURE = 0.8
MAX_NEW_TOKENS = 128
MODEL = "tiny-reasoner"
SEED = 20261130
FIRST = 60
"""Held-out problems from this one on, of each of the five levels; the checkpoint never saw them."""
TREE_NODES = 64
"""Nodes that TreeQuest may add per problem. One that repeats an ended solution costs no token."""
TREE_WIDTH = 4
"""Children that it makes of a node. With its default of 2 it soon repeats the solutions it has."""

System = Literal["engine", "its_hub", "optillm", "treequest", "pondera"]
Driver = Literal["http", "its_hub", "treequest"]


@dataclass(frozen=True, slots=True)
class Size:
    """How many problems a side gets at one concurrency.

    Args:
        blocks: rounds over the sides at issue, whose order turns about from one to the next.
        core: problems of one block for these sides.
        other: of the first block's problems, how many the other sides get; they are in no later block.
    """

    blocks: int
    core: int
    other: int


FULL = {16: Size(blocks=2, core=60, other=40), 1: Size(blocks=2, core=15, other=10)}
QUICK = {16: Size(blocks=2, core=5, other=5), 1: Size(blocks=2, core=1, other=1)}
"""By concurrency, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Side:
    """One system with one technique.

    Args:
        core: gets all problems, and may be the peer of the RESULT line if it belongs to a peer.
        note: what a reader of the table must know.
    """

    name: str
    system: System
    driver: Driver
    technique: str
    params: Mapping[str, Any] = field(default_factory=dict)
    core: bool = False
    note: str = ""


OURS = "pondera vote"
"""The side that is compared in the RESULT line."""
OUR_VOTE: Mapping[str, Any] = {**BEST_STOP.params, "n": N}
OUR_BEST: Mapping[str, Any] = {"n": N}
OUR_TREES: Mapping[str, Mapping[str, Any]] = {"beam": {}, "mcts": {}, "rebase": BEST_TREE.params}
"""Our tree techniques to be run if the registry has them, by name, with their parameters."""

_TREES = ("treequest mcts", "its_hub beam", "its_hub particles")
ALIKE: Mapping[str, tuple[str, ...]] = {
    "pondera best-of-n": ("its_hub best-of-n", "optillm bon"),
    "pondera beam": _TREES,
    "pondera mcts": _TREES,
    "pondera rebase": _TREES,
}
"""Further sides of ours, each with the peers' sides that it is compared with."""

PEERS = frozenset({"its_hub", "optillm"})
"""Systems whose core sides stand for the better peer."""

SIDES: tuple[Side, ...] = (
    Side("engine n=16", "engine", "http", "majority", core=True, note="one request, majority by hand"),
    Side("its_hub vote", "its_hub", "its_hub", "self_consistency", core=True),
    Side("its_hub beta vote", "its_hub", "its_hub", "beta", core=True, note="its own Beta stop"),
    Side("its_hub adaptive vote", "its_hub", "its_hub", "adaptive", core=True, note="its doubling rounds"),
    Side("its_hub best-of-n", "its_hub", "its_hub", "best_of_n", core=True, note="PRM as outcome reward"),
    Side("optillm majority_voting", "optillm", "http", "majority_voting", core=True, note="k=16"),
    Side(OURS, "pondera", "http", "self_consistency", OUR_VOTE, core=True),
    Side("pondera best-of-n", "pondera", "http", "best_of_n", OUR_BEST, core=True),
    Side("optillm bon", "optillm", "http", "bon", note="temperature 1 in its source; rates by the model"),
    Side(
        "optillm self_consistency", "optillm", "http", "self_consistency",
        note="5 samples at temperature 1 in its source, so not N=16",
    ),
    Side("its_hub beam", "its_hub", "its_hub", "beam", {"beam_width": 4}, note="steps are lines, PRM"),
    Side("its_hub particles", "its_hub", "its_hub", "particles", note="steps are lines, PRM"),
    Side(
        "treequest mcts", "treequest", "treequest", "mcts", {"nodes": TREE_NODES, "width": TREE_WIDTH},
        note=f"{TREE_NODES} nodes, {TREE_WIDTH} per expansion, a node is a line, PRM",
    ),
)  # fmt: skip

NOT_RUN = (
    "ThinkBooster 0.1.1 was not run: it requires vllm>=0.12,<0.13, which exists as a CUDA build alone, with "
    "torch 2.9; and its service, asked for an outside engine, sets top_p=0.8 and top_k=20 by itself, so that "
    "its samples would be others.",
    "OptiLLM's moa, mcts, rstar, cepo, plansearch and the like were not run: they put instructions in prose "
    "to the model, which this model has never seen.",
    "TreeQuest's AB-MCTS was not run: its nodes are meant to be whole answers; grown line by line it goes "
    "wide where it would have to go deep.",
)


def sides(registered: frozenset[str]) -> tuple[Side, ...]:
    """All sides that can run, our tree techniques among them if they are `registered`."""
    trees = tuple(
        Side(f"pondera {name}", "pondera", "http", name, params)
        for name, params in OUR_TREES.items()
        if name in registered
    )
    return SIDES + trees
