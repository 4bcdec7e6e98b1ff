"""SGLang's own engine alone in a process, for a comparison side by side: `n` samples in one call.

Reads a JSON line {"input_ids", "n", "max_new_tokens", "temperature"} a request, answers with one
{"tokens", "seconds"}. No streaming, no Ray, no orchestrator.
"""

from __future__ import annotations

import json
import sys
import time

from engines.sglang_cpu import create_engine
from engines.spec import EngineSpec


def main() -> None:
    spec = EngineSpec(**json.loads(sys.argv[1]))
    # What the engine prints belongs to the log; the protocol has standard output to itself.
    replies = sys.stdout
    sys.stdout = sys.stderr
    engine = create_engine(spec)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    try:
        for line in sys.stdin:
            ask = json.loads(line)
            began = time.monotonic()
            outs = engine.generate(
                input_ids=ask["input_ids"],
                sampling_params={
                    "n": ask["n"],
                    "max_new_tokens": ask["max_new_tokens"],
                    "temperature": ask["temperature"],
                },
            )
            seconds = time.monotonic() - began
            tokens = sum(o["meta_info"]["completion_tokens"] for o in outs)
            print(json.dumps({"tokens": tokens, "seconds": seconds}), file=replies, flush=True)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
