"""Records samples of the tiny reasoner on fresh problems, for `infra.bench.vote_study` to replay.

One row a problem, as JSON lines: {"id", "level", "prompt_tokens", "answer", "score_tokens", "samples"}; a
sample is {"ids", "text", "finish", "logprobs", "top_means", "score"}, the score being the process reward of
the finished text. The problems are of another seed than the held-out ones, and none of them is among those.

    python -m infra.bench.vote_record FILE --per-level 150
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.progress import Progress

import infra
from engines import sglang_cpu
from engines.tokenizer import ModelTokenizer
from infra.bench.problems import HELD_OUT
from orchestrator.verifiers.generative import ProcessReward

MODEL = Path(infra.__file__).parent / "models" / "tiny_reasoner" / "model"
SEED = 31
LEVELS = (1, 2, 3, 4, 5)
N = 16
TEMPERATURE = 0.8
MAX_NEW_TOKENS = 160
TOP = 5
AT_ONCE = 6
"""Problems in one batch of the engine."""


def fresh_problems(per_level: int) -> list[dict[str, Any]]:
    """Problems that are not held out, levels interleaved."""
    seen = {json.loads(line)["prompt"] for line in HELD_OUT.read_text().splitlines()}
    gen_problem = import_module("infra.models.tiny_reasoner.problems").gen_problem
    rng = random.Random(SEED)
    problems: list[dict[str, Any]] = []
    for level in LEVELS:
        number = 0
        while number < per_level:
            problem = gen_problem(rng, level)
            if problem["prompt"] not in seen:
                seen.add(problem["prompt"])
                problems.append({**problem, "id": f"F{level}-{number:03d}"})
                number += 1
    return sorted(problems, key=lambda p: (p["id"].split("-")[1], p["level"]))


class Recorder:
    """The engine alone in this process, without streaming and without Ray."""

    def __init__(self, threads: int) -> None:
        os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
        self._tokenizer = ModelTokenizer(MODEL)
        self._reward = ProcessReward(
            suffix_ids=self._tokenizer.encode("<|judge|>"),
            right_id=self._tokenizer.token_id("+"),
            wrong_id=self._tokenizer.token_id("-"),
            strip_ids=frozenset(self._tokenizer.encode("\n")) | frozenset(self._tokenizer.eos_ids),
        )
        arguments = {
            "model_path": str(MODEL),
            "device": "cpu",
            "dtype": "float32",
            "max_total_tokens": 65_536,
            "max_running_requests": N * AT_ONCE,
            "log_level": "error",
        }
        self._engine = sglang_cpu.start(arguments, threads)

    def close(self) -> None:
        self._engine.shutdown()

    def rows(self, problems: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Draw and score `N` samples of each problem."""
        prompts = [self._tokenizer.encode_chat([{"role": "user", "content": p["prompt"]}]) for p in problems]
        # Siblings sent at once share nothing: the first token of each prompt goes ahead.
        self._generate(prompts, [_params(1, 0, 0.0)] * len(prompts))
        asks = [(prompt, p["id"], i) for prompt, p in zip(prompts, problems, strict=True) for i in range(N)]
        outs = self._engine.generate(
            input_ids=[list(prompt) for prompt, _, _ in asks],
            sampling_params=[
                _params(MAX_NEW_TOKENS, _seed(problem, i), TEMPERATURE) for _, problem, i in asks
            ],
            return_logprob=True,
            top_logprobs_num=TOP,
        )
        samples = [self._sample(out) for out in outs]
        scores = self._scores([ask[0] for ask in asks], [tuple(s["ids"]) for s in samples])
        for sample, score in zip(samples, scores, strict=True):
            sample["score"] = score
        return [
            {
                "id": p["id"],
                "level": p["level"],
                "prompt_tokens": len(prompt),
                "answer": p["answer"],
                "score_tokens": self._reward.tokens,
                "samples": samples[at * N : (at + 1) * N],
            }
            for at, (p, prompt) in enumerate(zip(problems, prompts, strict=True))
        ]

    def _sample(self, out: dict[str, Any]) -> dict[str, Any]:
        meta = out["meta_info"]
        ids = list(out["output_ids"])
        tops = [
            [value for value, _, _ in row if value > -math.inf]
            for row in meta["output_top_logprobs"][: len(ids)]
        ]
        return {
            "ids": ids,
            "text": self._tokenizer.decode(ids),
            "finish": meta["finish_reason"]["type"],
            "logprobs": [round(value, 5) for value, _, _ in meta["output_token_logprobs"][: len(ids)]],
            "top_means": [round(sum(row) / len(row), 4) for row in tops],
        }

    def _scores(
        self, prompts: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]
    ) -> list[float | None]:
        paths = [
            self._reward.input_ids(p + ids, len(p)) if ids else None
            for p, ids in zip(prompts, outputs, strict=True)
        ]
        wanted = sorted({path for path in paths if path is not None})
        labels = [self._reward.right_id, self._reward.wrong_id]
        outs = self._engine.generate(
            input_ids=[list(path) for path in wanted],
            sampling_params=[_params(1, 0, 0.0)] * len(wanted),
            return_logprob=True,
            token_ids_logprob=[labels] * len(wanted),
        )
        of_path: dict[tuple[int, ...] | None, float | None] = {None: None}
        for path, out in zip(wanted, outs, strict=True):
            by_id = {token: value for value, token, _ in out["meta_info"]["output_token_ids_logprobs"][0]}
            right, wrong = (math.exp(by_id[label]) for label in labels)
            of_path[path] = round(right / (right + wrong), 6)
        return [of_path[path] for path in paths]

    def _generate(self, prompts: Iterable[tuple[int, ...]], params: list[dict[str, Any]]) -> None:
        self._engine.generate(input_ids=[list(p) for p in prompts], sampling_params=params)


def _params(max_new_tokens: int, seed: int, temperature: float) -> dict[str, Any]:
    return {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "sampling_seed": seed,
        "skip_special_tokens": False,
    }


def _seed(problem: str, sample: int) -> int:
    return random.Random(f"{SEED}/{problem}/{sample}").getrandbits(62)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--per-level", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    problems = fresh_problems(args.per_level)
    args.file.parent.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(args.threads)
    try:
        with args.file.open("w") as out, Progress() as bar:
            task = bar.add_task(f"{len(problems)} problems", total=len(problems))
            for at in range(0, len(problems), AT_ONCE):
                for row in recorder.rows(problems[at : at + AT_ONCE]):
                    out.write(json.dumps(row, separators=(",", ":")) + "\n")
                bar.advance(task, min(AT_ONCE, len(problems) - at))
    finally:
        recorder.close()


if __name__ == "__main__":
    main()
