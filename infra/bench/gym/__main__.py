"""Real tasks for a real small model: reasoning-gym families on SmolLM2-135M-Instruct, by several techniques.

    python -m infra.bench.gym [--pilot] [--quick]

Each task is asked after two solved ones of its family, which show the form of the answer. `--pilot` asks all
candidate families, to see which of them the model does partly; their tasks are others than those of the
benchmark itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import infra
from infra.bench.each import ask_each
from infra.bench.gym.families import CANDIDATES, FAMILIES, LEAST, MOST
from infra.bench.results import report
from infra.bench.search.configs import Config
from infra.bench.server import serving, settings_for
from infra.bench.stats import compare, wilson
from infra.bench.venvs import environment
from orchestrator.effort import choose

MODEL = "smollm2-135m-instruct"
SHOTS = 2
COUNT, PILOT_COUNT, QUICK_COUNT = 40, 10, 2
SEED, PILOT_SEED = 31, 30
AT_ONCE = 4
MAX_NEW_TOKENS = 24
END_OF_ANSWER = "\n"
N, PILOT_N = 8, 4

GREEDY = Config("greedy", "single")
MAJORITY = Config(f"majority {N}", "self_consistency", {"n": N, "width": N, "stop": "none"})
PILOT_MAJORITY = Config(
    f"majority {PILOT_N}", "self_consistency", {"n": PILOT_N, "width": PILOT_N, "stop": "none"}
)
AUTO = choose("auto", can_score=False, greedy=False)
SURE = Config(f"confidence stop {N}", AUTO.technique, {**AUTO.params, "n": N})
CONFIGS: tuple[Config, ...] = (
    GREEDY,
    MAJORITY,
    Config(f"beta stop {N}", "self_consistency", {"n": N, "width": 4, "stop": "beta"}),
    SURE,
    Config(f"deepconf {N}", "deepconf", {"n": N}),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One task under one configuration; `tokens` are all that were charged."""

    config: str
    family: str
    number: int
    answer: str | None
    tokens: int
    right: bool = False


class Gym:
    """The tasks, by way of the environment that has reasoning-gym."""

    def __init__(self, python: Path, families: Sequence[str], seed: int, count: int) -> None:
        self._python = python
        self._wanted = {
            "families": {name: dict(CANDIDATES[name]) for name in families},
            "seed": seed,
            "count": count,
            "shots": SHOTS,
        }

    def tasks(self) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self._run("make", self._wanted)
        return tasks

    def scored(self, rows: Sequence[Row]) -> list[Row]:
        answers = [[row.family, row.number, row.answer] for row in rows]
        marks = self._run("score", {**self._wanted, "answers": answers})
        return [Row(**{**asdict(row), "right": mark}) for row, mark in zip(rows, marks, strict=True)]

    def _run(self, what: str, wanted: Mapping[str, Any]) -> Any:
        command = [str(self._python), "-m", "infra.bench.gym.tasks", what]
        root = Path(infra.__file__).parents[1]
        done = subprocess.run(
            command, input=json.dumps(wanted), capture_output=True, text=True, cwd=root, check=False
        )
        if done.returncode:
            raise RuntimeError(f"reasoning-gym failed:\n{done.stderr}")
        return json.loads(done.stdout)


async def run(*, pilot: bool, quick: bool) -> None:
    settings = settings_for(MODEL)
    python = environment("reasoning_gym", settings.state_dir.resolve() / "peers")
    families = tuple(CANDIDATES) if pilot else FAMILIES
    count = QUICK_COUNT if quick else PILOT_COUNT if pilot else COUNT
    gym = Gym(python, families, PILOT_SEED if pilot else SEED, count)
    tasks = gym.tasks()
    configs = (GREEDY, PILOT_MAJORITY) if pilot else CONFIGS
    rows: list[Row] = []
    async with serving(settings) as (client, _):
        with Progress() as progress:
            for config in configs:
                rows += await ask_all(client, config, tasks, progress)
    rows = gym.scored(rows)
    console = Console(width=150)
    tell(console, rows, families, [c.name for c in configs])
    if pilot:
        partly = [f for f in families if any(LEAST <= share(rows, c.name, f) <= MOST for c in configs)]
        console.print(f"partly done ({LEAST:.0%} to {MOST:.0%}): {', '.join(partly)}")
        return
    gaps = {c.name: compare(rights(rows, c.name), rights(rows, MAJORITY.name), SEED) for c in configs}
    for name, gap in gaps.items():
        console.print(
            f"{name} against {MAJORITY.name}: {gap.difference:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
        )
    report(
        "bench-gym",
        {
            "greedy_acc": mean(rights(rows, GREEDY.name)),
            "vote_acc": mean(rights(rows, MAJORITY.name)),
            "stop_acc": mean(rights(rows, SURE.name)),
            "stop_token_ratio": tokens(rows, SURE.name) / tokens(rows, MAJORITY.name),
        },
        [asdict(row) for row in rows],
        families={name: dict(CANDIDATES[name]) for name in families},
        model=MODEL,
    )


async def ask_all(
    client: httpx.AsyncClient, config: Config, tasks: Sequence[Mapping[str, Any]], progress: Progress
) -> list[Row]:
    """A row of every task, in order; the number of a task is its seed."""

    async def one(task: Mapping[str, Any]) -> Row:
        return await ask(client, config, task)

    return await ask_each(one, tasks, progress, config.name, at_once=AT_ONCE)


async def ask(client: httpx.AsyncClient, config: Config, task: Mapping[str, Any]) -> Row:
    """One request.

    Raises:
        httpx.HTTPStatusError: the service answered with an error.
    """
    messages = []
    for question, answer in task["shots"]:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"Answer: {answer}"},
        ]
    body = {
        "model": MODEL,
        "messages": [*messages, {"role": "user", "content": task["question"]}],
        "technique": config.technique,
        "params": dict(config.params),
        "max_new_tokens": MAX_NEW_TOKENS,
        "stop": [END_OF_ANSWER],
        "seed": task["number"],
    }
    response = await client.post("/v1/reason", json=body)
    response.raise_for_status()
    found = response.json()
    charged = found["receipt"]["tokens"]["charged"]
    return Row(config.name, task["family"], task["number"], found.get("answer"), charged)


def tell(console: Console, rows: Sequence[Row], families: Sequence[str], configs: Sequence[str]) -> None:
    """Right answers by family and configuration, in per cent, and tokens a task."""
    table = Table(title=f"{MODEL}: right answers, % (95 % interval), and tokens a task")
    for column in ("family", *configs):
        table.add_column(column, justify="left" if column == "family" else "right")
    for family in families:
        table.add_row(family, *(f"{100 * share(rows, c, family):.0f}" for c in configs))
    cells = []
    for c in configs:
        right = rights(rows, c)
        low, high = wilson(sum(right), len(right))
        cells.append(f"{100 * mean(right):.1f} ({100 * low:.0f}-{100 * high:.0f})")
    table.add_section()
    table.add_row("all", *cells)
    table.add_row("tokens", *(f"{tokens(rows, c) / len(rights(rows, c)):.0f}" for c in configs))
    console.print(table)


def rights(rows: Sequence[Row], config: str) -> list[bool]:
    return [row.right for row in rows if row.config == config]


def share(rows: Sequence[Row], config: str, family: str) -> float:
    return mean([row.right for row in rows if row.config == config and row.family == family])


def tokens(rows: Sequence[Row], config: str) -> int:
    return sum(row.tokens for row in rows if row.config == config)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pilot", action="store_true", help="all candidates, one pass and a majority")
    parser.add_argument("--quick", action="store_true", help="a few tasks, to see that it runs")
    given = parser.parse_args()
    asyncio.run(run(pilot=given.pilot, quick=given.quick))
