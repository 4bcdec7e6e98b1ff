"""`make demo`: start a server, ask three questions of rising difficulty, print answers and receipts, stop."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from services.cli.ask import show

QUESTIONS = (
    ("Compute 40+44.", "low"),
    ("Compute (47+38)*3-29.", "medium"),
    ("Tom has 96 apples. Tom buys 3 bags of 21. Tom gives away 77. How many apples?", "high"),
)


def main() -> None:
    pondera = Path(sys.executable).parent / "pondera"
    subprocess.run([pondera, "models", "prepare", "tiny-reasoner"], check=True)
    with tempfile.TemporaryDirectory(prefix="pondera-demo-") as folder:
        state = Path(folder)
        (state / "models").symlink_to(Path(".pondera/models").resolve())
        config = state / "demo.yaml"
        config.write_text(
            "models:\n  - {name: tiny-reasoner, source: tiny-reasoner, dtype: float32,"
            " max_new_tokens: 128, threads: 1}\n"
        )
        arguments = [pondera, "serve", "--port", "0", "--state-dir", state, "--config", config]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        try:
            url, key = _announced(process)
            for query, effort in QUESTIONS:
                print(f"\n=== {query}  (effort {effort})", flush=True)
                response = httpx.post(
                    f"{url}/v1/reason",
                    json={"model": "tiny-reasoner", "query": query, "effort": effort},
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=120,
                    trust_env=False,
                )
                response.raise_for_status()
                show(response.json())
        finally:
            process.terminate()
            process.wait(60)
    print("\nThe server has been stopped.")


def _announced(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    url = key = None
    for line in process.stdout:
        if found := re.search(r"listens on (\S+)", line):
            url = found[1]
        if found := re.search(r"\(shown this once\): (\S+)", line):
            key = found[1]
        if url and key:
            return url, key
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
