"""`make demo`: start a server, ask three questions of rising difficulty, print answers and receipts, stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from services.api.reason_schema import ReasonAnswer
from services.cli.ask import show

QUESTIONS = (
    ("Compute 40+44.", "low"),
    ("Compute (47+38)*3-29.", "medium"),
    ("Tom has 96 apples. Tom buys 3 bags of 21. Tom gives away 77. How many apples?", "high"),
)


PREPARE_S = 600.0
START_S = 240.0
ANSWER_S = 120.0
STOP_S = 60.0


def main() -> None:
    pondera = Path(sys.executable).parent / "pondera"
    clean = environment(os.environ)
    subprocess.run([pondera, "models", "prepare", "tiny-reasoner"], check=True, env=clean, timeout=PREPARE_S)
    with tempfile.TemporaryDirectory(prefix="pondera-demo-") as folder:
        state = Path(folder)
        (state / "models").symlink_to(Path(".pondera/models").resolve())
        config = state / "demo.yaml"
        config.write_text(
            "models:\n  - {name: tiny-reasoner, source: tiny-reasoner, dtype: float32,"
            " max_new_tokens: 128, threads: 1}\n"
        )
        arguments = [
            str(p) for p in (pondera, "serve", "--port", 0, "--state-dir", state, "--config", config)
        ]
        output = state / "output.txt"
        with output.open("w") as stream:
            process = subprocess.Popen(arguments, stdout=stream, env=clean)
        try:
            _ask_all(*announced(process, output, START_S))
        finally:
            _stop(process)
    print("\nThe server has been stopped.")


def environment(whole: Mapping[str, str]) -> dict[str, str]:
    """An environment without settings of Pondera, which would change what is shown here."""
    return {k: v for k, v in whole.items() if not k.upper().startswith("PONDERA_")}


def _ask_all(url: str, key: str) -> None:
    for query, effort in QUESTIONS:
        print(f"\n=== {query}  (effort {effort})", flush=True)
        response = httpx.post(
            f"{url}/v1/reason",
            json={"model": "tiny-reasoner", "query": query, "effort": effort},
            headers={"Authorization": f"Bearer {key}"},
            timeout=ANSWER_S,
            trust_env=False,
        )
        response.raise_for_status()
        show(ReasonAnswer.model_validate_json(response.content))


def announced(process: subprocess.Popen[bytes], output: Path, within_s: float) -> tuple[str, str]:
    """Wait for the curl line, the last that a server prints when it has started, and return (URL, key).

    Raises:
        SystemExit: the server ended, took longer than `within_s` seconds, or showed no URL or key.
    """
    deadline = time.monotonic() + within_s
    while "curl" not in (text := output.read_text()):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"the server did not start within {within_s:g} s")
        time.sleep(0.1)
    url = re.search(r"listens on (\S+)", text)
    key = re.search(r"\(shown this once\): (\S+)", text)
    if url is None or key is None:
        raise SystemExit("the server showed no URL or no key")
    return url[1], key[1]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SystemExit(f"the server did not stop within {STOP_S:g} s and was killed") from None


if __name__ == "__main__":
    main()
