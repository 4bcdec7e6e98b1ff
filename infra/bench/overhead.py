"""What the orchestrator costs: REST best-of-16 against the raw engine's n=16, and an idle server.

The two sides take turns over the same prompts in one run. Tokens per second count generated tokens alone,
so the time that scoring takes counts against the REST side.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import httpx
import psutil
from rich.progress import Progress

from engines.tokenizer import ModelTokenizer
from infra.bench.problems import Problem, held_out
from infra.bench.raw_engine import RawEngine, raw_engine
from infra.bench.results import report
from infra.bench.server import serving
from orchestrator.deployment import models_dir
from orchestrator.settings import Settings, load

N = 16
REPEATS = 5
PROBLEMS = 3
"""Problems of each of the five levels."""
IDLE_S = 30.0
SETTLE_S = 30.0
"""Mathematics and the sandbox are made ready after the start; a server is idle when that is done."""
MODEL = "tiny-reasoner"


async def main() -> None:
    settings = load()
    problems = held_out(60, PROBLEMS)
    model = next(m for m in settings.models if m.name == MODEL)
    async with serving(settings) as (client, metrics):
        idle = await idle_share(IDLE_S)
        folder = models_dir(settings) / MODEL
        tokenizer = ModelTokenizer(folder)
        arguments: dict[str, Any] = {
            "model_path": str(folder.resolve()),
            "dtype": model.dtype,
            "max_total_tokens": model.max_total_tokens,
            "max_running_requests": model.max_running_requests,
            "threads": model.threads,
        }
        async with raw_engine(**arguments) as raw:
            # New prompts: what siblings find in the cache is what the first of them has put there.
            first = await one_pass(client, raw, tokenizer, settings, problems, "warm-up")
            metrics.added.clear()
            rows = []
            with Progress() as bar:
                task = bar.add_task("repeats", total=REPEATS)
                for repeat in range(REPEATS):
                    rows.append(await one_pass(client, raw, tokenizer, settings, problems, str(repeat)))
                    bar.advance(task)
        added = sorted(seconds * 1000 for kind, seconds in metrics.added if kind == "generate")
        scored = sorted(seconds * 1000 for kind, seconds in metrics.added if kind == "score")
    shares = [r["rest_tokens_per_s"] / r["raw_tokens_per_s"] for r in rows]
    with_scores = [r["rest_charged_per_s"] / r["raw_tokens_per_s"] for r in rows]
    for r, share in zip(rows, shares, strict=True):
        rest, alone = r["rest_tokens_per_s"], r["raw_tokens_per_s"]
        print(f"repeat {r['repeat']}: REST {rest:.0f} tokens/s, raw {alone:.0f}, share {share:.3f}")
    spread = f"{min(shares):.3f} to {max(shares):.3f}"
    print(f"share of the raw engine: median {statistics.median(shares):.3f}, range {spread}")
    print(f"the same with the verifier's tokens counted: median {statistics.median(with_scores):.3f}")
    for name, values in (("generation", added), ("score", scored)):
        figures = f"p50 {at(values, 0.5):.1f} ms, p99 {at(values, 0.99):.1f} ms"
        print(f"added per {name}: {figures} over {len(values)} calls")
    print(f"idle: {100 * idle:.2f} % of one core over {IDLE_S:.0f} s, {len(settings.models)} models served")
    report(
        "bench-overhead",
        {
            "engine_share": statistics.median(shares),
            "added_p50_ms": at(added, 0.5),
            "added_p99_ms": at(added, 0.99),
            "sibling_cached": first["sibling_cached"] / (first["sibling_cached"] + first["sibling_fresh"]),
            "idle_core": idle,
        },
        rows,
        n=N,
        problems=[p.id for p in problems],
        engine_share_with_scores=statistics.median(with_scores),
        added_score_p50_ms=at(scored, 0.5),
        added_score_p99_ms=at(scored, 0.99),
    )


async def one_pass(
    client: httpx.AsyncClient,
    raw: RawEngine,
    tokenizer: ModelTokenizer,
    settings: Settings,
    problems: list[Problem],
    repeat: str,
) -> dict[str, Any]:
    """All problems once on each side, one query at a time; the sides take turns problem by problem."""
    defaults = next(m for m in settings.models if m.name == MODEL)
    row: dict[str, Any] = dict.fromkeys(
        ("rest_tokens", "rest_charged", "rest_s", "raw_tokens", "raw_s", "sibling_cached", "sibling_fresh"), 0
    )
    loop = asyncio.get_running_loop()
    for problem in problems:
        body = {"model": MODEL, "query": problem.prompt, "technique": "best_of_n", "params": {"n": N}}
        began = loop.time()
        response = await client.post("/v1/reason", json=body)
        row["rest_s"] += loop.time() - began
        response.raise_for_status()
        tokens = response.json()["receipt"]["tokens"]
        row["rest_tokens"] += tokens["generated"]
        row["rest_charged"] += tokens["generated"] + tokens["verifier"]
        row["sibling_cached"] += tokens["sibling_cached"]
        row["sibling_fresh"] += tokens["sibling_fresh"]
        ids = tokenizer.encode_chat([{"role": "user", "content": problem.prompt}])
        count, seconds = await raw.sample(ids, N, defaults.max_new_tokens, defaults.temperature)
        row["raw_tokens"] += count
        row["raw_s"] += seconds
    row["repeat"] = repeat
    row["rest_tokens_per_s"] = row["rest_tokens"] / row["rest_s"]
    row["rest_charged_per_s"] = row["rest_charged"] / row["rest_s"]
    row["raw_tokens_per_s"] = row["raw_tokens"] / row["raw_s"]
    return row


async def idle_share(seconds: float) -> float:
    """CPU seconds per second of this process and all below it while nothing is asked."""
    # No progress bar here: drawing it costs more than the server.
    print(f"measuring the idle server for {seconds:.0f} s", flush=True)
    await asyncio.sleep(SETTLE_S)
    before, began = cpu_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_seconds() - before) / (time.monotonic() - began)


def cpu_seconds() -> float:
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
    return total


def at(ordered: list[float], quantile: float) -> float:
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


if __name__ == "__main__":
    asyncio.run(main())
