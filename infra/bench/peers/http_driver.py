"""Sides reached over HTTP: the bare engine, OptiLLM's proxy, and Pondera. Runs in our environment."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from infra.bench.peers import wire
from infra.bench.peers.prm import unlimited
from infra.bench.peers.vote import majority

RECEIPT = ("tokens", "calls", "stop_reason", "tie", "failures")
"""Parts of our receipt that are kept."""


class Refused(Exception):
    """The status was not 200."""


async def post(http: aiohttp.ClientSession, url: str, body: Mapping[str, Any], key: str) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    async with http.post(url, json=body, headers=headers) as response:
        if response.status != 200:
            raise Refused(f"{response.status}: {(await response.text())[:300]}")
        return await response.json()


def chat(settings: Mapping[str, Any], problem: wire.Problem, **more: Any) -> dict[str, Any]:
    return {
        "model": settings["model"],
        "messages": [{"role": "user", "content": problem["prompt"]}],
        "temperature": settings["temperature"],
        "max_tokens": settings["max_new_tokens"],
        **more,
    }


async def bare(http: aiohttp.ClientSession, turn: wire.Turn, problem: wire.Problem) -> wire.Answer:
    """All samples in one request to the engine, and a majority by hand."""
    settings = turn["settings"]
    body = chat(settings, problem, n=settings["n"])
    out = await post(http, f"{settings['engine']}/v1/chat/completions", body, "none")
    texts = [choice["message"]["content"] or "" for choice in out["choices"]]
    return wire.Answer(majority(texts), {"samples": len(texts)})


async def optillm(http: aiohttp.ClientSession, turn: wire.Turn, problem: wire.Problem) -> wire.Answer:
    """One request to the proxy, which names its approach; `k` is what its majority voting reads."""
    settings = turn["settings"]
    body = chat(settings, problem, optillm_approach=turn["technique"], k=settings["n"])
    out = await post(http, f"{settings['optillm']}/v1/chat/completions", body, "none")
    return wire.Answer(out["choices"][0]["message"]["content"], {"usage": out.get("usage")})


async def pondera(http: aiohttp.ClientSession, turn: wire.Turn, problem: wire.Problem) -> wire.Answer:
    """One request to the public API."""
    settings = turn["settings"]
    body = {
        "model": settings["model"],
        "query": problem["prompt"],
        "technique": turn["technique"],
        "params": turn["params"],
        "sampling": {"temperature": settings["temperature"]},
        "max_new_tokens": settings["max_new_tokens"],
        "seed": problem["seed"],
    }
    out = await post(http, f"{settings['pondera']}/v1/reason", body, settings["key"])
    kept = {name: out["receipt"].get(name) for name in RECEIPT}
    return wire.Answer(out["text"], {"status": out["status"], "receipt": kept})


WAYS = {"engine": bare, "optillm": optillm, "pondera": pondera}


@contextlib.asynccontextmanager
async def opened(turn: wire.Turn) -> AsyncIterator[wire.Session]:
    way = WAYS[turn["system"]]
    async with unlimited() as http:

        async def answer(problem: wire.Problem) -> wire.Answer:
            return await way(http, turn, problem)

        yield wire.Session(answer)


if __name__ == "__main__":
    wire.serve(opened)
