"""SGLang's own HTTP server on a machine without a GPU, with one endpoint more: what it has counted.

SGLang's own metrics count the same but cost a search with many small requests several per cent of its time.
The server's arguments come as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from engines.sglang_cpu import ARGUMENTS, environment, install_shims
from infra.bench.peers.counting import COUNTED_PATH, Counters

FIXED = {"device": "cpu", "sampling_backend": "pytorch", "log_level": "error"}


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    os.environ.update(environment(given.pop("threads")))
    # As in our own engine: scores are read from the model's distribution, whatever shares the batch.
    os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
    install_shims()
    serve(given)


def serve(given: dict[str, Any]) -> None:
    """Blocks until the server is ended."""
    from sglang.srt.entrypoints.engine import init_tokenizer_manager
    from sglang.srt.entrypoints.http_server import app, launch_server
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.server_args import ServerArgs

    from infra.bench.peers import server_worker

    totals = Counters()

    class Counting(TokenizerManager):  # type: ignore[misc]
        async def _handle_batch_output(self, recv_obj: Any) -> None:
            # Also of requests that nobody waits for any more.
            for i, reason in enumerate(recv_obj.finished_reasons):
                if reason is not None:
                    totals.generated += recv_obj.completion_tokens[i]
                    totals.prompt += recv_obj.prompt_tokens[i]
                    totals.cached += recv_obj.cached_tokens[i]
                    totals.requests += 1
            await super()._handle_batch_output(recv_obj)

    def start(server_args: Any, port_args: Any) -> Any:
        return init_tokenizer_manager(server_args, port_args, TokenizerManagerClass=Counting)

    async def counted() -> dict[str, int]:
        return totals.as_dict()

    app.add_api_route(COUNTED_PATH, counted)
    launch_server(
        ServerArgs(**ARGUMENTS, **FIXED, **given),
        init_tokenizer_manager_func=start,
        run_scheduler_process_func=server_worker.run_scheduler,
        run_detokenizer_process_func=server_worker.run_detokenizer,
    )


if __name__ == "__main__":
    main()
