"""Asks the service a set of problems with one technique, several at once, and keeps a row of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.progress import Progress

from infra.bench.each import ask_each
from infra.bench.problems import Problem
from infra.bench.search.configs import MODEL, Config

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One problem under one configuration.

    Args:
        seed: of the request.
        tokens: all that were charged: prompt, samples, verifier.
        after_stop: generated after their call had been cancelled.
        cached, fresh: prompt tokens of all generations but the first, found in the prefix cache or not.
        seconds: from sending the request to the whole answer.
    """

    config: str
    problem: str
    level: int
    seed: int
    right: bool
    answered: bool
    status: str
    stop_reason: str
    tokens: int
    generated: int
    verifier: int
    after_stop: int
    cached: int
    fresh: int
    calls: int
    failed_calls: int
    seconds: float


async def ask_all(
    client: httpx.AsyncClient,
    config: Config,
    problems: Sequence[tuple[int, Problem]],
    progress: Progress,
    *,
    at_once: int = AT_ONCE,
) -> list[Row]:
    """A row of every problem, in the order of the problems. The number of a problem is its seed."""

    async def one(item: tuple[int, Problem]) -> Row:
        seed, problem = item
        return await ask(client, config, problem, seed)

    return await ask_each(one, problems, progress, config.name, at_once=at_once)


async def ask(
    client: httpx.AsyncClient, config: Config, problem: Problem, seed: int, *, deadline_ms: int | None = None
) -> Row:
    """One request; a refusal or a fault is an exception, since a benchmark must not count it as an answer.

    Raises:
        httpx.HTTPStatusError: the service answered with an error other than a deadline without any answer.
    """
    body = {
        "model": MODEL,
        "query": problem.prompt,
        "technique": config.technique,
        "params": dict(config.params),
        "sampling": dict(config.sampling),
        "seed": seed,
    }
    if deadline_ms is not None:
        body["deadline_ms"] = deadline_ms
    begin = time.perf_counter()
    response = await client.post("/v1/reason", json=body)
    seconds = time.perf_counter() - begin
    answer = response.json()
    if response.status_code >= 400 and answer.get("error", {}).get("code") != "deadline_exceeded":
        response.raise_for_status()
    found = answer if response.status_code < 400 else answer["pondera"]
    receipt, tokens = found["receipt"], found["receipt"]["tokens"]
    return Row(
        config=config.name,
        problem=problem.id,
        level=problem.level,
        seed=seed,
        right=found.get("answer") == str(problem.answer),
        answered=found.get("answer") is not None,
        status=found["status"],
        stop_reason=receipt["stop_reason"],
        tokens=tokens["charged"],
        generated=tokens["generated"],
        verifier=tokens["verifier"],
        after_stop=tokens["after_stop"],
        cached=tokens["sibling_cached"],
        fresh=tokens["sibling_fresh"],
        calls=receipt["calls"]["generate"],
        failed_calls=receipt["calls"]["failed"],
        seconds=seconds,
    )
