"""What is measured: techniques with their parameters, and which problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.effort import choose

MODEL = "tiny-reasoner"
N = 16


@dataclass(frozen=True, slots=True)
class Config:
    """A technique as it is run.

    Args:
        name: in tables and plots.
        technique, params: as a client gives them.
        sampling: of the request.
    """

    name: str
    technique: str
    params: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


FIXED = Config("majority 16", "self_consistency", {"n": N, "width": N, "stop": "none"})
"""All 16 samples at once and a plain majority; it ends early only when the rest cannot change the winner."""

_AUTO, _AUTO_UNSCORED = (choose("auto", can_score=scored, greedy=False) for scored in (True, False))
BEST_STOP = Config("vote, best stop", _AUTO.technique, _AUTO.params)
"""What effort `auto` does; tuned on 750 problems that are not held out (`vote_record` and `vote_study`)."""

BEST_TREE = Config("rebase 3, likelihood", "rebase", {"n": 3, "temperature": 0.1, "likelihood": 2.0})
"""Chosen on problems that are not held out (`infra.bench.tree_study`), for its lead over a majority vote of
the same tokens; more paths are right more often."""

CURVE: tuple[Config, ...] = (
    Config("single, greedy", "single"),
    Config("single, sampled", "single", sampling={"temperature": 0.8}),
    *(Config(f"majority {n}", "self_consistency", {"n": n, "width": n, "stop": "none"}) for n in (4, 64)),
    FIXED,
    Config("beta stop 16", "self_consistency", {"n": N, "stop": "beta"}),
    Config(
        "confidence stop 12, no verifier", _AUTO_UNSCORED.technique, {**_AUTO_UNSCORED.params, "n": 12}
    ),
    Config("window stop 16", "self_consistency", {"n": N, "stop": "window", "window": 4}),
    BEST_STOP,
    *(Config(f"best of {n}, weighted", "best_of_n", {"n": n}) for n in (4, 16)),
    Config("best of 16, max", "best_of_n", {"n": N, "aggregate": "max"}),
    Config("best of 16, product", "best_of_n", {"n": N, "reduction": "product"}),
    Config("deepconf 16", "deepconf", {"n": N}),
    *(Config(f"beam {w}x4", "beam", {"width": w, "expand": 4}) for w in (2, 4, 8)),
    *(Config(f"dvts {w}x4", "dvts", {"subtrees": w, "expand": 4}) for w in (2, 4, 8)),
    *(Config(f"rebase {n}", "rebase", {"n": n}) for n in (8, 16)),
    BEST_TREE,
    *(Config(f"mcts {e}", "mcts", {"expansions": e}) for e in (32, 64)),
    *(Config(f"particles {n}", "particle", {"particles": n}) for n in (8, 16)),
    Config("cascade: greedy, vote, beam", "cascade", {
        "stages": [
            {"technique": "self_consistency", "params": {"n": 4, "width": 4}},
            {"technique": "beam", "params": {"width": 4, "expand": 4}},
        ],
        "min_support": 0.9,
    }),
)  # fmt: skip
