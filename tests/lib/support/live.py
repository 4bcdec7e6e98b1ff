"""A real server: `pondera serve` in a process of its own, real engines, real store."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).parents[3]
MODELS = ROOT / ".pondera" / "models"
PONDERA = Path(sys.executable).parent / "pondera"
START_S = 150.0

TINY: dict[str, Any] = {
    "name": "tiny-reasoner",
    "source": "tiny-reasoner",
    "dtype": "float32",
    "max_new_tokens": 128,
    "threads": 1,
}


@dataclass
class Live:
    """A running server. `key` is the one it printed, None when it printed none."""

    process: subprocess.Popen[str]
    url: str
    key: str | None
    state: Path
    output: Path

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=120)

    def pondera(self, *arguments: str, **env: str) -> str:
        """Run the command line against this server's state; returns what it printed."""
        done = subprocess.run(
            [PONDERA, *arguments],
            env=clean_environment() | {"PONDERA_STATE_DIR": str(self.state), **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def schedulers(self) -> list[psutil.Process]:
        return [p for p in self.processes if "sglang::scheduler" in command(p)]

    def stop(
        self, number: int = signal.SIGTERM, within_s: float = 40, *, group: bool = False
    ) -> list[psutil.Process]:
        """Send a signal, wait for the end, and return those of its processes that are still there.

        Args:
            group: send it to the server's whole process group, as a terminal does with Ctrl-C.
        """
        mine = self.processes
        if group:
            # It was started in a session of its own, so that its group is not this one's.
            assert os.getpgid(self.process.pid) == self.process.pid
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        self.process.wait(within_s)
        _, alive = psutil.wait_procs(mine, timeout=0.2)
        return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]

    def wait_ready(self, within_s: float = 120) -> None:
        deadline = time.monotonic() + within_s
        while httpx.get(f"{self.url}/readyz", trust_env=False, timeout=10).status_code != 200:
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.2)


def command(process: psutil.Process) -> str:
    """A process's command line; empty when it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("PONDERA_", "OTEL_"))}


@contextlib.contextmanager
def live(
    state: Path, models: list[dict[str, Any]] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Live]:
    """Serve on a free port until the block ends; None for the models that are served by default."""
    state.mkdir(parents=True, exist_ok=True)
    if not (state / "models").exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        (state / "models").symlink_to(MODELS)
    arguments = [str(PONDERA), "serve", "--port", "0", "--state-dir", str(state)]
    if models is not None:
        config = state / "config.yaml"
        config.write_text(yaml.safe_dump({"models": models}))
        arguments += ["--config", str(config)]
    output = state / f"output-{time.monotonic_ns()}.txt"
    with output.open("w") as stream:
        process = subprocess.Popen(
            arguments,
            env=clean_environment() | dict(env or {}),
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            url, key = _announced(process, output)
            yield Live(process, url, key, state, output)
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(40)
            if process.poll() is None:
                process.kill()
                process.wait()


def _announced(process: subprocess.Popen[str], output: Path) -> tuple[str, str | None]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        text = output.read_text()
        url = re.search(r"Pondera listens on (\S+)", text)
        if url and "curl" in text:
            key = re.search(r"\(shown this once\): (\S+)", text)
            return url[1], key[1] if key else None
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"the server did not start in {START_S} s:\n{output.read_text()}")
