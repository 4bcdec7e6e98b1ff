"""Makes and scores tasks of reasoning-gym. Runs in the environment that has it; JSON in, JSON out.

python -m infra.bench.gym.tasks make   < {"families": {name: params}, "seed": 1, "count": 20, "shots": 2}
python -m infra.bench.gym.tasks score  < {"families": ..., "seed": 1, "count": 20, "shots": 2,
                                          "answers": [[family, number, answer or null]]}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import reasoning_gym

Wanted = Mapping[str, Any]


def dataset(wanted: Wanted, family: str) -> Any:
    """The same tasks whenever it is called with the same arguments: first the shots, then the tasks."""
    size = wanted["shots"] + wanted["count"]
    return reasoning_gym.create_dataset(family, seed=wanted["seed"], size=size, **wanted["families"][family])


def make(wanted: Wanted) -> list[dict[str, Any]]:
    tasks = []
    for family in wanted["families"]:
        entries = list(dataset(wanted, family))
        shots = [[entry["question"], entry["answer"]] for entry in entries[: wanted["shots"]]]
        for number, entry in enumerate(entries[wanted["shots"] :]):
            tasks.append({"family": family, "number": number, "question": entry["question"], "shots": shots})
    return tasks


def score(wanted: Wanted) -> list[bool]:
    """Whether each answer gets the full mark of the family's own scoring."""
    made = {family: dataset(wanted, family) for family in wanted["families"]}
    return [
        answer is not None
        and made[family].score_answer(answer, made[family][wanted["shots"] + number]) >= 1.0
        for family, number, answer in wanted["answers"]
    ]


if __name__ == "__main__":
    work = {"make": make, "score": score}[sys.argv[1]]
    json.dump(work(json.load(sys.stdin)), sys.stdout)
