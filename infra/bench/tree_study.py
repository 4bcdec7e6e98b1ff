"""Tries parameters of tree techniques on fresh problems, with the tiny reasoner's steps drawn once and kept.

The real search classes run. What a step of a path continues with is drawn from the model (transformers, no
engine) the first time it is asked for and remembered, so that all parameters are tried on the same draws, and
most of them without the model. Calls come back one by one in the order in which they were asked for. Tokens
are charged as in a receipt.

    python -m infra.bench.tree_study beam '{"width": 4}' beam '{"width": 8}' --per-level 60

The problems are those of `infra.bench.vote_record`, none of which is held out; levels 3 to 5.
"""

from __future__ import annotations

import argparse
import json
import pickle
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from engines.sglang_cpu import install_shims
from engines.tokenizer import ModelTokenizer
from infra.bench.vote_record import MODEL, TEMPERATURE, fresh_problems
from orchestrator.verifiers.generative import ProcessReward
from search.contract import Chunk, Costs, Generate, Generated, Room, Score, Scored
from search.registry import TECHNIQUES
from search.sample import SampleLimits

LEVELS = (3, 4, 5)
DRAWS = 8
"""Continuations of a path that are drawn at once."""
LIMITS = SampleLimits(max_new_tokens=128, context_tokens=512, step_ends=("\n",), step_tokens=48)
COSTS = Costs(score_tokens=2)
ROOM = Room(slots=64, tokens=1 << 40, kv_tokens=1 << 40)


@dataclass
class Steps:
    """The model's steps and scores, remembered by the path that they follow."""

    drawn: dict[tuple[int, ...], list[tuple[int, ...]]] = field(default_factory=dict)
    scores: dict[tuple[int, ...], float] = field(default_factory=dict)
    told: dict[tuple[tuple[int, ...], int], tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        install_shims()  # transformers looks for torchvision's operators
        from transformers import AutoModelForCausalLM

        self.tokenizer = ModelTokenizer(MODEL)
        self._model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        self._newline = self.tokenizer.token_id("\n")
        self._reward = ProcessReward(
            self.tokenizer.encode("<|judge|>"),
            self.tokenizer.token_id("+"),
            self.tokenizer.token_id("-"),
            frozenset({self._newline, *self.tokenizer.eos_ids}),
        )

    def step(self, path: tuple[int, ...], number: int) -> tuple[int, ...]:
        """The tokens of the `number`-th step drawn after a path."""
        steps = self.drawn.setdefault(path, [])
        while len(steps) <= number:
            steps += self._draw(path, len(steps))
        return steps[number]

    def score(self, path: tuple[int, ...], prompt_tokens: int) -> float:
        """The process reward of a path."""
        ids = self._reward.input_ids(path, prompt_tokens)
        if ids not in self.scores:
            with torch.inference_mode():
                logits = self._model(torch.tensor([ids])).logits[0, -1]
            pair = logits[[self._reward.right_id, self._reward.wrong_id]].softmax(0)
            self.scores[ids] = float(pair[0])
        return self.scores[ids]

    def logprobs(self, path: tuple[int, ...], count: int) -> tuple[float, ...]:
        """Log-probabilities of the last `count` tokens of a path."""
        if (path, count) not in self.told:
            with torch.inference_mode():
                logits = self._model(torch.tensor([path])).logits[0, -count - 1 : -1].log_softmax(-1)
            own = torch.tensor(path[-count:])[:, None]
            self.told[path, count] = tuple(logits.gather(1, own)[:, 0].tolist())
        return self.told[path, count]

    def _draw(self, path: tuple[int, ...], already: int) -> list[tuple[int, ...]]:
        with torch.inference_mode():
            return self._sampled(path, already)

    def _sampled(self, path: tuple[int, ...], already: int) -> list[tuple[int, ...]]:
        from transformers import DynamicCache

        generator = torch.Generator().manual_seed(zlib.crc32(repr((path, already)).encode()))
        cache = DynamicCache()
        logits = self._model(torch.tensor([path]), past_key_values=cache).logits[:, -1].repeat(DRAWS, 1)
        cache.batch_repeat_interleave(DRAWS)
        rows: list[list[int]] = [[] for _ in range(DRAWS)]
        ends = {self._newline, *self.tokenizer.eos_ids}
        for _ in range(LIMITS.step_tokens):
            chosen = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1, generator=generator)
            for row, token in zip(rows, chosen[:, 0].tolist(), strict=True):
                if not row or row[-1] not in ends:
                    row.append(token)
            if all(row[-1] in ends for row in rows):
                break
            logits = self._model(chosen, past_key_values=cache).logits[:, -1]
        return [tuple(row) for row in rows]


def run(
    steps: Steps, technique: str, params: dict[str, Any], prompt: tuple[int, ...], seed: int
) -> tuple[str | None, int]:
    """The answer of a search, and the tokens it was charged."""
    made = TECHNIQUES[technique]
    search = made.build(prompt, made.params_type(**params), LIMITS, COSTS, seed)
    waiting: deque[Any] = deque()
    taken: Counter[tuple[int, ...]] = Counter()
    charged = len(prompt)
    while not search.finished:
        waiting.extend(search.ask(Room(ROOM.slots - len(waiting), ROOM.tokens, ROOM.kv_tokens)))
        if not waiting:
            break
        call = waiting.popleft()
        cancelled: list[int] = []
        if isinstance(call, Generate):
            path = search.tree.path_ids(call.parent)
            ids = _written(steps, path, call, taken)
            charged += len(ids)
            text = steps.tokenizer.decode(ids)
            logprobs = steps.logprobs((*path, *ids), len(ids)) if call.logprobs else ()
            cancelled += search.tell(Chunk(call.id, ids, text, logprobs))
            if ids[-1] in steps.tokenizer.eos_ids:
                end = Generated(call.id, "stop")
            elif call.until and text.endswith("\n"):
                end = Generated(call.id, "step", "\n", 1)
            else:
                end = Generated(call.id, "length")
            cancelled += search.tell(end)
        elif isinstance(call, Score):
            charged += COSTS.score_tokens
            score = steps.score(search.tree.path_ids(call.node), len(prompt))
            cancelled += search.tell(Scored(call.id, score))
        waiting = deque(c for c in waiting if c.id not in cancelled)
    best = search.best()
    return (None if best is None else best.answer), charged


def _written(
    steps: Steps, path: tuple[int, ...], call: Generate, taken: Counter[tuple[int, ...]]
) -> tuple[int, ...]:
    """One step, or for a call that has no ends of its own all of them."""
    ids: tuple[int, ...] = ()
    while len(ids) < call.max_new_tokens and not (ids and (call.until or ids[-1] in steps.tokenizer.eos_ids)):
        at = path + ids
        ids += steps.step(at, taken[at])
        taken[at] += 1
    return ids[: call.max_new_tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="technique and JSON params, in turns")
    parser.add_argument("--per-level", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", type=Path, default=Path(".pondera/study/steps.pickle"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    problems = [p for p in fresh_problems(arguments.first + arguments.per_level) if p["level"] in LEVELS]
    problems = [p for p in problems if int(p["id"].split("-")[1]) >= arguments.first]
    steps = Steps()
    if arguments.memory.exists():
        steps.drawn, steps.scores, steps.told = pickle.loads(arguments.memory.read_bytes())
    for technique, text in zip(arguments.runs[::2], arguments.runs[1::2], strict=True):
        right: Counter[int] = Counter()
        tokens = 0
        for seed, problem in enumerate(track(problems, f"{technique} {text}", transient=True)):
            prompt = steps.tokenizer.encode_chat([{"role": "user", "content": problem["prompt"]}])
            answer, charged = run(steps, technique, json.loads(text), prompt, seed)
            right[problem["level"]] += answer == str(problem["answer"])
            tokens += charged
        count = len(problems)
        levels = "  ".join(f"{level}: {right[level] * len(LEVELS) / count:.3f}" for level in LEVELS)
        share = sum(right.values()) / count
        print(f"{share:.3f}  {tokens / count:6.0f} tokens  {levels}  {technique} {text}", flush=True)
        arguments.memory.parent.mkdir(parents=True, exist_ok=True)
        arguments.memory.write_bytes(pickle.dumps((steps.drawn, steps.scores, steps.told)))


if __name__ == "__main__":
    main()
