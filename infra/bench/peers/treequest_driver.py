"""The MCTS of TreeQuest 0.3.3 over the HTTP engine. Runs in its environment.

TreeQuest brings the search alone; model and reward come from its user, here: a node is a solution as far as
it goes, a child has one more line, and its score is the process reward. An ended solution that is chosen
again is handed back as it is, without a call. A batch of trials runs at once, and all of it is told before
the next is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import treequest  # type: ignore[import-not-found]

from infra.bench.peers import wire
from infra.bench.peers.prm import LINE, TinyReasoner, unlimited

ACTION = "line"


@dataclass(frozen=True, slots=True)
class Solution:
    """Lines so far, each with its line break but for the last of an ended one."""

    text: str
    ended: bool
    score: float


async def extended(model: TinyReasoner, rendered: str, parent: Solution | None) -> Solution:
    """The parent with one more line."""
    if parent is not None and parent.ended:
        return parent
    before = parent.text if parent is not None else ""
    line, ended = await model.next_line(rendered + before)
    text = before + line + ("" if ended else LINE)
    return Solution(text, ended, await model.score(rendered + text))


def chosen(pairs: list[tuple[Solution, float]]) -> list[tuple[Solution, float]]:
    """Ended solutions first, each kind by score."""
    return sorted(pairs, key=lambda pair: (pair[0].ended, pair[1]), reverse=True)


async def search(
    algo: Any, model: TinyReasoner, rendered: str, nodes: int, batch: int
) -> tuple[Solution, int]:
    """Grow a tree to that many nodes, `batch` trials at a time; the best solution, and how many ended."""
    state = algo.init_tree()
    left = nodes
    while left > 0:
        state, trials = algo.ask_batch(state, min(batch, left), [ACTION])
        left -= len(trials)
        found = await asyncio.gather(*(extended(model, rendered, trial.parent_state) for trial in trials))
        for trial, solution in zip(trials, found, strict=True):
            state = algo.tell(state, trial.trial_id, (solution, solution.score))
    best, _ = treequest.top_k(state, algo, k=1, ranking_fn=chosen)[0]
    ended = sum(solution.ended for solution, _ in algo.get_state_score_pairs(state))
    return best, ended


@contextlib.asynccontextmanager
async def opened(turn: wire.Turn) -> AsyncIterator[wire.Session]:
    async with unlimited() as http:
        model = TinyReasoner(http, turn["settings"])
        algo = treequest.StandardMCTS(samples_per_action=turn["params"]["width"])
        params = turn["params"]

        async def answer(problem: wire.Problem) -> wire.Answer:
            best, ended = await search(algo, model, problem["rendered"], params["nodes"], params["width"])
            return wire.Answer(best.text, {"ended": ended})

        session = wire.Session(answer)
        yield session
        session.scores = model.scores


if __name__ == "__main__":
    wire.serve(opened)
