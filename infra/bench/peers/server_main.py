"""SGLang's own HTTP server on a machine without a GPU. Its arguments come as one JSON object."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from engines.sglang_cpu import ARGUMENTS, environment, install_shims


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    os.environ.update(environment(given.pop("threads")))
    # As in our own engine: scores are read from the model's distribution, whatever shares the batch.
    os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
    install_shims()
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    from infra.bench.peers import server_worker

    fixed = {"device": "cpu", "sampling_backend": "pytorch", "log_level": "error", "enable_metrics": True}
    launch_server(
        ServerArgs(**ARGUMENTS, **fixed, **given),
        run_scheduler_process_func=server_worker.run_scheduler,
        run_detokenizer_process_func=server_worker.run_detokenizer,
    )


if __name__ == "__main__":
    main()
