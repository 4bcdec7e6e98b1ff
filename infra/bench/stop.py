"""Self-consistency with the Beta stop against a fixed 16 samples, on held-out problems, paired.

Both sides get the same seeds. The problems are 60 to 119 of each level, on which the checkpoint was not
chosen.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
from rich.progress import Progress

from infra.bench.problems import Problem, held_out
from infra.bench.results import report
from infra.bench.server import serving, settings_for

N = 16
FIRST, PER_LEVEL = 60, 60
AT_ONCE = 4
MODEL = "tiny-reasoner"
FIXED = {"n": N, "width": N, "stop": "none"}
STOPPED = {"n": N, "width": 4, "stop": "beta"}


async def main() -> None:
    settings = settings_for(MODEL)
    problems = held_out(FIRST, PER_LEVEL)
    rows: list[dict[str, Any]] = []
    async with serving(settings) as (client, _):
        with Progress() as bar:
            task = bar.add_task(f"{len(problems)} problems, both ways", total=len(problems))
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(index: int, problem: Problem) -> None:
                async with gate:
                    fixed = await ask(client, problem, FIXED, index)
                    stopped = await ask(client, problem, STOPPED, index)
                    rows.append({"id": problem.id, "level": problem.level, "fixed": fixed, "stop": stopped})
                    bar.advance(task)

            await asyncio.gather(*(one(i, p) for i, p in enumerate(problems)))
    summarise(rows)


async def ask(
    client: httpx.AsyncClient, problem: Problem, params: dict[str, Any], seed: int
) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "query": problem.prompt,
        "technique": "self_consistency",
        "params": params,
        "seed": seed,
    }
    response = await client.post("/v1/reason", json=body)
    response.raise_for_status()
    answer = response.json()
    receipt = answer["receipt"]
    return {
        "right": answer["answer"] == str(problem.answer),
        "tokens": receipt["tokens"]["charged"],
        "generated": receipt["tokens"]["generated"],
        "after_stop": receipt["tokens"]["after_stop"],
        "samples": receipt["calls"]["generate"],
        "why": receipt["stop_reason"],
    }


def summarise(rows: list[dict[str, Any]]) -> None:
    for level in sorted({r["level"] for r in rows}):
        part = [r for r in rows if r["level"] == level]
        right = f"right {share(part, 'fixed'):.3f} fixed, {share(part, 'stop'):.3f} with the stop"
        print(f"level {level}: {right}; tokens {total(part, 'stop') / total(part, 'fixed'):.3f} of the fixed")
    lost = sum(r["fixed"]["right"] and not r["stop"]["right"] for r in rows)
    won = sum(r["stop"]["right"] and not r["fixed"]["right"] for r in rows)
    difference = (won - lost) / len(rows)
    error = math.sqrt((won + lost) / len(rows) - difference**2) / math.sqrt(len(rows))
    interval = f"{difference:+.3f} ± {1.96 * error:.3f} (95 %)"
    print(f"paired: {won} won by the stop, {lost} lost; difference {interval}")
    generated = sum(r["stop"]["generated"] for r in rows)
    report(
        "bench-stop",
        {
            "acc_fixed": share(rows, "fixed"),
            "acc_stop": share(rows, "stop"),
            "token_ratio": total(rows, "stop") / total(rows, "fixed"),
            "after_stop": sum(r["stop"]["after_stop"] for r in rows) / generated,
        },
        rows,
        n=N,
        fixed=FIXED,
        stop=STOPPED,
        won=won,
        lost=lost,
    )


def share(rows: list[dict[str, Any]], side: str) -> float:
    return float(sum(r[side]["right"] for r in rows) / len(rows))


def total(rows: list[dict[str, Any]], side: str) -> int:
    return sum(r[side]["tokens"] for r in rows)


if __name__ == "__main__":
    asyncio.run(main())
