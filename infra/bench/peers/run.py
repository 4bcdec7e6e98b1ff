"""Runs all turns and keeps a row of every reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from infra.bench.peers.counting import Tokens, receipted, spent
from infra.bench.peers.driver import DriverProcess, Ran
from infra.bench.peers.pondera import Pondera
from infra.bench.peers.schedule import Turn
from infra.bench.peers.server import PeerEngine
from infra.bench.peers.sides import MAX_NEW_TOKENS, MODEL, SEED, TEMPERATURE, Driver, N
from infra.bench.peers.summary import Record, Verdict
from infra.bench.peers.vote import is_right, key_of
from infra.bench.problems import Problem

PAUSE_S = 0.5
"""Between turns, so that what was cancelled at the end of one is not running in the next."""


@dataclass(frozen=True, slots=True)
class Bench:
    """All that is up.

    Args:
        render: a problem's prompt as the model's template writes it.
        labels: token ids of the process reward's right and wrong.
    """

    drivers: Mapping[Driver, DriverProcess]
    engine: PeerEngine
    optillm: str
    pondera: Pondera
    render: Callable[[str], str]
    labels: tuple[int, int]

    async def run(self, turn: Turn, answered: Callable[[], None]) -> tuple[Ran, Tokens]:
        """One turn, from a cold prefix cache, and what it cost."""
        ours = turn.side.system == "pondera"
        message = self._message(turn, await self.pondera.new_key() if ours else "")
        before = await self.engine.counted()
        ran = await self.drivers[turn.side.driver].run(message, answered)
        await self.engine.drained()
        await asyncio.sleep(PAUSE_S)
        if ours:
            receipts = [r["extra"]["receipt"] for r in ran.replies if r["extra"]]
            return ran, receipted(receipts)
        return ran, spent(before, await self.engine.counted(), ran.scores)

    def _message(self, turn: Turn, key: str) -> dict[str, Any]:
        settings = {
            "engine": self.engine.url,
            "optillm": self.optillm,
            "pondera": self.pondera.url,
            "key": key,
            "model": MODEL,
            "n": N,
            "temperature": TEMPERATURE,
            "max_new_tokens": MAX_NEW_TOKENS,
            "labels": self.labels,
            "seed": SEED + turn.block,
        }
        return {
            "system": turn.side.system,
            "technique": turn.side.technique,
            "params": dict(turn.side.params),
            "concurrency": turn.concurrency,
            "settings": settings,
            "problems": [
                {
                    "id": problem.id,
                    "prompt": problem.prompt,
                    "rendered": self.render(problem.prompt),
                    "seed": seed_of(problem, turn.concurrency),
                }
                for problem in turn.problems
            ],
        }


def seed_of(problem: Problem, concurrency: int) -> int:
    """Of our request: the same in every run, another one for each problem and concurrency."""
    level, number = problem.id.removeprefix("L").split("-")
    return SEED * 1000 + concurrency * 10_000 + int(level) * 1000 + int(number)


def verdict(problem: Problem, reply: Mapping[str, Any]) -> Verdict:
    """How a reply counts."""
    text = reply["text"]
    return Verdict(
        id=problem.id,
        level=problem.level,
        right=is_right(text, problem.answer),
        answered=key_of(text) is not None,
        failed=reply["error"] is not None or reply["extra"].get("status") == "failed",
        seconds=reply["seconds"],
    )


class Book:
    """Rows as they come, in a file of JSON lines, and the records they add up to."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._records: dict[tuple[str, int], Record] = {}

    def add(self, turn: Turn, ran: Ran, tokens: Tokens) -> None:
        where = {"side": turn.side.name, "concurrency": turn.concurrency, "block": turn.block}
        key = (turn.side.name, turn.concurrency)
        record = self._records.setdefault(key, Record(turn.side, turn.concurrency))
        problems = {problem.id: problem for problem in turn.problems}
        for reply in ran.replies:
            judged = verdict(problems[reply["id"]], reply)
            record.verdicts.append(judged)
            self._write({"kind": "problem", **where, **reply, **asdict(judged)})
        record.walls.append((len(turn.problems), ran.wall))
        record.tokens += tokens
        self._write({"kind": "turn", **where, "wall": ran.wall, "scores": ran.scores, **asdict(tokens)})

    @property
    def records(self) -> list[Record]:
        return list(self._records.values())

    def rows(self) -> list[dict[str, Any]]:
        """One per side and concurrency."""
        return [
            {
                "side": r.side.name,
                "concurrency": r.concurrency,
                "problems": r.problems,
                "right": r.right,
                "failed": r.failed,
                "wall": r.wall,
                **asdict(r.tokens),
            }
            for r in self.records
        ]

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
