"""A process that tries grammars out, so that one that never compiles, or crashes, ends no engine.

Run as a script with the model's folder, seconds of processor time per grammar, and ids of stop tokens. It
reads `{"field", "text"}` as JSON lines and answers each with `{"refusal": null | text}`; before the first
it writes one empty line. On a grammar that costs too much it dies by SIGPROF.

A grammar is compiled, and then walked: xgrammar computes the mask of each token in the engine's main loop,
where an ambiguous grammar of few characters can take a second per token for everybody.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar
from tokenizers import Tokenizer

_SPARE_BYTES = 1 << 30
_MOST_COMPILED_BYTES = 64 << 20
_STEPS = 256


class _Prover:
    def __init__(self, tokenizer: Any, stop_token_ids: list[int]) -> None:
        names = tokenizer.get_vocab(with_added_tokens=True)
        vocabulary = [""] * (max(names.values()) + 1)
        for name, number in names.items():
            vocabulary[number] = name
        # xgrammar has no public way to this but through transformers' tokenizers.
        metadata = xgrammar.TokenizerInfo._detect_metadata_from_hf(tokenizer.to_str())
        self._info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=stop_token_ids, **metadata)
        self._stops = set(self._info.stop_token_ids)
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def refusal(self, field: str, text: str) -> str | None:
        """Why this grammar cannot be served; None if it can."""
        if "\0" in text or "\\u0000" in text:
            return "has a NUL character"
        try:
            if field == "regex":
                compiled = self._compiler.compile_regex(text)
            else:
                compiled = self._compiler.compile_json_schema(text, any_whitespace=False)
        except (RuntimeError, ValueError):
            return "cannot be compiled"
        if compiled.memory_size_bytes > _MOST_COMPILED_BYTES:
            return "is too large when compiled"
        self._walk(compiled, repeating=True)
        self._walk(compiled, repeating=False)
        return None

    def _walk(self, compiled: Any, *, repeating: bool) -> None:
        chance = random.Random(0)  # noqa: S311
        matcher = xgrammar.GrammarMatcher(compiled)
        mask = xgrammar.allocate_token_bitmask(1, self._info.vocab_size)
        token = -1
        for _ in range(_STEPS):
            matcher.fill_next_token_bitmask(mask)
            bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
            allowed = [i for i in np.flatnonzero(bits[: self._info.vocab_size]) if i not in self._stops]
            if not allowed:
                return
            if not repeating or not bits[token] or token < 0:
                token = int(allowed[0] if repeating else chance.choice(allowed))
            if not matcher.accept_token(token) or matcher.is_terminated():
                return


def main() -> None:
    folder, seconds, *stops = sys.argv[1:]
    # What libraries print must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.nice(5)
    prover = _Prover(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")), [int(i) for i in stops])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _SPARE_BYTES, used + _SPARE_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers.write("\n")
    for line in sys.stdin:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        refusal = prover.refusal(question["field"], question["text"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps({"refusal": refusal}) + "\n")


if __name__ == "__main__":
    main()
