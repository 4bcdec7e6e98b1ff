"""SGLang's own engine alone in a process, for a comparison side by side: `n` samples in one call.

No streaming, no Ray, no orchestrator, no sampler of ours. Speaks JSON lines: it is given
{"input_ids", "n", "max_new_tokens", "temperature"} and answers {"tokens", "seconds"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class RawEngine:
    """The process from the outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def sample(
        self, input_ids: Sequence[int], n: int, max_new_tokens: int, temperature: float
    ) -> tuple[int, float]:
        """Tokens generated over all samples, and the seconds that took."""
        ask = {
            "input_ids": list(input_ids),
            "n": n,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ask).encode() + b"\n")
        reply = await self._read()
        return int(reply["tokens"]), float(reply["seconds"])

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the raw engine ended")
        reply: dict[str, Any] = json.loads(line)
        return reply


@asynccontextmanager
async def raw_engine(**arguments: Any) -> AsyncIterator[RawEngine]:
    """Start it, with these arguments of SGLang, and wait until it can serve."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "infra.bench.raw_engine",
        json.dumps(arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    engine = RawEngine(process)
    try:
        await engine._read()
        yield engine
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


def main() -> None:
    from engines.sglang_cpu import ARGUMENTS, environment, install_shims

    given = json.loads(sys.argv[1])
    os.environ.update(environment(given.pop("threads")))
    install_shims()
    from sglang.srt.entrypoints.engine import Engine

    from infra.bench import raw_worker

    class Raw(Engine):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(raw_worker.run_scheduler)
        run_detokenizer_process_func = staticmethod(raw_worker.run_detokenizer)

    # What the engine prints is not part of the protocol.
    replies, sys.stdout = sys.stdout, sys.stderr
    defaults = {"device": "cpu", "sampling_backend": "pytorch", "log_level": "error"}
    engine = Raw(**ARGUMENTS, **defaults, **given)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        ids = ask.pop("input_ids")
        began = time.monotonic()
        outs = engine.generate(input_ids=ids, sampling_params=ask)
        seconds = time.monotonic() - began
        tokens = sum(o["meta_info"]["completion_tokens"] for o in outs)
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=replies, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
