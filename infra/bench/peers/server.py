"""The peers' servers: SGLang over HTTP, with what it has counted, and OptiLLM's proxy before it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from infra.bench.peers.counting import COUNTED_PATH, Counters
from infra.bench.peers.processes import answering, free_port, running
from infra.bench.peers.sides import MODEL, SEED, N
from orchestrator.settings import ModelSettings

DRAIN_S = 120
CONTENT = "m['content']"
OPTILLM_PREFIX = "User: "
"""What OptiLLM puts before a user's words. This model has only ever seen plain problems and would be at a
loss, which would say nothing of OptiLLM: the peers' server takes it off again, so that all see one prompt."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is up."""

    url: str
    pid: int


class PeerEngine:
    """SGLang's HTTP server as the benchmark sees it."""

    def __init__(self, served: Served, client: httpx.AsyncClient) -> None:
        self.url = served.url
        self.pid = served.pid
        self._client = client

    async def drained(self) -> None:
        """Wait until it has nothing left to do, dropped requests included, and empty its prefix cache.

        Raises:
            httpx.HTTPStatusError: it was still busy after `DRAIN_S` seconds.
        """
        response = await self._client.post("/flush_cache", params={"timeout": DRAIN_S})
        response.raise_for_status()

    async def counted(self) -> Counters:
        response = await self._client.get(COUNTED_PATH)
        response.raise_for_status()
        return Counters(**response.json())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def template(model: Path) -> str:
    """The chat template of a model folder, made to take `OPTILLM_PREFIX` off.

    Raises:
        ValueError: the template does not write contents as expected.
    """
    source = (model / "chat_template.jinja").read_text(encoding="utf-8")
    if source.count(CONTENT) != 1:
        raise ValueError(f"{model}: the chat template does not have {CONTENT} exactly once")
    cut = f"{CONTENT}[{len(OPTILLM_PREFIX)}:] if {CONTENT}.startswith('{OPTILLM_PREFIX}') else {CONTENT}"
    return source.replace(CONTENT, f"({cut})")


@contextlib.asynccontextmanager
async def engine(model: ModelSettings, folder: Path, extra: Path, logs: Path) -> AsyncIterator[PeerEngine]:
    """Serve the model with the precision, KV size and running limit that our own engine has.

    Args:
        model: as our service has it.
        folder: absolute path of its files.
        extra: packages that the HTTP server needs beyond those of our environment.
        logs: takes the server's log.
    """
    port = free_port()
    chat_template = logs / "chat_template.jinja"
    _write(chat_template, template(folder))
    arguments = {
        "chat_template": str(chat_template),
        "model_path": str(folder),
        "served_model_name": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "dtype": model.dtype,
        "max_total_tokens": model.max_total_tokens,
        "max_running_requests": model.max_running_requests,
        "threads": model.threads,
        "random_seed": SEED % 2**31,
        "sampling_defaults": "openai",
    }
    command = [sys.executable, "-m", "infra.bench.peers.server_main", json.dumps(arguments)]
    log = logs / "sglang.log"
    url = f"http://127.0.0.1:{port}"
    async with running(command, log, more={"PYTHONPATH": str(extra)}) as process:
        await answering(f"{url}/health", process, log)
        async with httpx.AsyncClient(base_url=url, timeout=DRAIN_S + 10, trust_env=False) as client:
            peer = PeerEngine(Served(url, process.pid), client)
            await peer.drained()
            yield peer


@contextlib.asynccontextmanager
async def optillm(python: Path, upstream: str, logs: Path) -> AsyncIterator[Served]:
    """OptiLLM's proxy before an engine, started by its own command."""
    port = free_port()
    command = [str(python.parent / "optillm"), "--host", "127.0.0.1", "--port", str(port), "--model", MODEL]
    command += ["--base-url", f"{upstream}/v1", "--best-of-n", str(N), "--log", "warning"]
    log = logs / "optillm.log"
    # It looks for plugins in its working directory.
    work = logs / "optillm"
    work.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    async with running(command, log, more={"OPENAI_API_KEY": "none"}, folder=work) as process:
        await answering(f"{url}/health", process, log)
        yield Served(url, process.pid)
