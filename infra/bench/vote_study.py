"""Replays a technique's parameters against recorded samples: accuracy and tokens a level.

The real search classes run; a scripted engine gives them the samples of `infra.bench.vote_record` in their
order, all running ones growing in step, `--chunk` tokens at a time, with a score coming back before the next
chunk. Tokens are charged as in a receipt: prompt, all generated tokens, the verifier's own.

    python -m infra.bench.vote_study FILE self_consistency '{"stop": "window"}' '{"stop": "beta", "width": 1}'

All are compared with a plain vote of 16, problem by problem.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.contract import (
    Call,
    Chunk,
    Compare,
    Compared,
    Costs,
    Generate,
    Generated,
    Room,
    Score,
    Scored,
    Search,
)
from search.equivalence import answer_key
from search.registry import TECHNIQUES
from search.sample import SampleLimits
from search.tree import ROOT

FIXED = ("self_consistency", {"n": 16, "width": 16, "stop": "none", "give_up_after": 16})
AMPLE = 10**9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one search came to. `wasted`: tokens of samples that the search cut off."""

    level: int
    right: bool
    tokens: int
    generated: int
    wasted: int
    rounds: int


class Replay:
    """One search over the recorded samples of one problem."""

    def __init__(self, row: Mapping[str, Any], search: Search, chunk: int) -> None:
        self._row = row
        self._search = search
        self._chunk = chunk
        self._first_nodes: list[int] = []
        self._sent: dict[int, int] = {}
        self._calls: dict[int, Call] = {}
        self._scores = 0
        self._rounds = 0

    def run(self) -> Outcome:
        search, row = self._search, self._row
        while True:
            calls = search.ask(Room(len(row["samples"]) * 4, AMPLE, AMPLE))
            for call in calls:
                self._take(call)
            if not self._calls:
                break
            for call in sorted(self._calls.values(), key=lambda c: c.id):
                if call.id in self._calls:
                    self._advance(call)
            self._rounds += any(isinstance(c, Generate) for c in self._calls.values())
        best = search.best()
        key = None if best is None or best.answer is None else best.key
        stopped = sum(b.tokens for b in search.branches() if b.fate in ("stopped", "filtered"))
        generated = search.tree.generated_tokens
        tokens = search.tree.prompt_tokens + generated + self._scores * row["score_tokens"]
        right = key == answer_key(str(row["answer"]))
        return Outcome(row["level"], right, tokens, generated, stopped, self._rounds)

    def _take(self, call: Call) -> None:
        self._calls[call.id] = call
        self._scores += isinstance(call, Score)
        if isinstance(call, Generate) and call.parent == ROOT:
            self._first_nodes.append(call.node)

    def _advance(self, call: Call) -> None:
        if not isinstance(call, Generate):
            del self._calls[call.id]
            self._cancel(self._search.tell(self._answer(call)))
            return
        sample = self._sample(call.node)
        at = self._sent.get(call.id, 0)
        end = at + self._chunk
        ids = tuple(sample["ids"][at:end])
        last = end >= len(sample["ids"])
        self._sent[call.id] = end
        logprobs = tuple(sample["logprobs"][at:end]) if call.logprobs else ()
        tops = tuple(sample["top_means"][at:end]) if call.logprobs > 1 else ()
        text = sample["text"] if last else ""
        self._cancel(self._search.tell(Chunk(call.id, ids, text, logprobs, tops)))
        if last and call.id in self._calls:
            del self._calls[call.id]
            finish = "stop" if sample["finish"] == "stop" else "length"
            self._cancel(self._search.tell(Generated(call.id, finish)))  # type: ignore[arg-type]

    def _answer(self, call: Call) -> Any:
        if isinstance(call, Score):
            return Scored(call.id, self._sample(call.node)["score"] or 0.0)
        if isinstance(call, Compare):
            one, other = (self._sample(n)["score"] or 0.0 for n in (call.node, call.other))
            return Compared(call.id, 0.5 + (one - other) / 2)
        raise TypeError(f"no recorded answer for a {type(call).__name__}")

    def _sample(self, node: int) -> Mapping[str, Any]:
        first = self._search.tree.path(node)[1]
        sample: Mapping[str, Any] = self._row["samples"][self._first_nodes.index(first)]
        return sample

    def _cancel(self, calls: Sequence[int]) -> None:
        for call in calls:
            self._calls.pop(call, None)


def replay(
    rows: Sequence[Mapping[str, Any]], technique: str, params: Mapping[str, Any], chunk: int
) -> list[Outcome]:
    """One outcome a row."""
    kind = TECHNIQUES[technique]
    made = kind.params_type(**{"max_retries": 0, **params})
    limits = SampleLimits(max_new_tokens=1024, context_tokens=100_000)
    outcomes = []
    for row in rows:
        costs = Costs(score_tokens=row["score_tokens"])
        search = kind.build((1,) * row["prompt_tokens"], made, limits, costs, 7)
        outcomes.append(Replay(row, search, chunk).run())
    return outcomes


def table(name: str, outcomes: Sequence[Outcome], base: Sequence[Outcome]) -> None:
    """Print accuracy and token ratio a level, and the paired difference over all."""
    levels = sorted({o.level for o in outcomes})
    groups: list[tuple[str, list[int]]] = [(str(level), [level]) for level in levels]
    groups += [("1-2", [1, 2]), ("3-5", [3, 4, 5]), ("all", levels)]
    cells = []
    for label, which in groups:
        pairs = [(o, b) for o, b in zip(outcomes, base, strict=True) if o.level in which]
        accuracy = sum(o.right for o, _ in pairs) / len(pairs)
        ratio = sum(o.tokens for o, _ in pairs) / sum(b.tokens for _, b in pairs)
        cells.append(f"{label}: {accuracy:.3f}/{ratio:.3f}")
    won = sum(o.right and not b.right for o, b in zip(outcomes, base, strict=True))
    lost = sum(b.right and not o.right for o, b in zip(outcomes, base, strict=True))
    n = len(outcomes)
    gap = (won - lost) / n
    error = 1.96 * math.sqrt(max(0.0, (won + lost) / n - gap**2) / n)
    wasted = sum(o.wasted for o in outcomes) / sum(o.generated for o in outcomes)
    rounds = sum(o.rounds for o in outcomes) / n
    print(name)
    print("   " + "  ".join(cells))
    print(f"   gap {gap:+.4f} ± {error:.4f} (won {won}, lost {lost})")
    print(f"   cut off {wasted:.3f} of the generated tokens; {rounds:.1f} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("technique")
    parser.add_argument("params", nargs="+", type=json.loads, help="JSON objects")
    parser.add_argument("--chunk", type=int, default=4)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.file.read_text().splitlines()]
    base = replay(rows, *FIXED, chunk=args.chunk)
    table("fixed 16", base, base)
    for params in args.params:
        table(json.dumps(params), replay(rows, args.technique, params, args.chunk), base)


if __name__ == "__main__":
    main()
