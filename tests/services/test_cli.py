"""The `pondera` command: answers shown as they are, errors as one line, hints that work."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from guards.budget import Budget
from guards.store import StoreClient
from guards.tenants import TenantStore
from infra import demo
from orchestrator.settings import load
from services.api.reason_schema import ReasonAnswer
from services.cli import serve as serve_command
from services.cli.announce import Door, announcement, open_door, url_of
from services.cli.ask import show
from services.cli.main import build
from services.cli.terminal import printable

HOSTILE = "[/red] [bold]x :smile: \x1b[31mred\x07 \ud800"


def answer(text: str) -> dict[str, Any]:
    tokens = dict.fromkeys(
        ("charged", "prompt", "generated", "verifier", "after_stop", "prefill_fresh", "prefill_cached",
         "sibling_fresh", "sibling_cached"), 1,
    )  # fmt: skip
    receipt = {
        "search_id": "srch-1", "model": "toy", "technique": "single", "params": {"[/x]": 1}, "why": text,
        "seed": 1, "stop_reason": text, "tokens": tokens, "cap": 9, "fixed_n_tokens": None,
        "calls": {"generate": 1, "verifier": 0, "failed": 0}, "failures": [],
        "disagreements": 0, "late_calls": 0, "fates": {"chosen": 1},
        "branches": [], "support": None, "tie": False, "elapsed_ms": 1,
    }  # fmt: skip
    return {"id": "srch-1", "text": text, "answer": text, "status": "completed", "receipt": receipt}


class Canned:
    """A server that gives one answer to everything."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        canned = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(canned.status)
                self.send_header("Content-Length", str(len(canned.body)))
                self.end_headers()
                self.wfile.write(canned.body)

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def canned() -> Iterator[Canned]:
    it = Canned()
    thread = threading.Thread(target=it.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield it
    it.server.shutdown()
    it.server.server_close()
    thread.join()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), arguments)


def ask(url: str, *more: str) -> Result:
    result = run("ask", "hi", "--base-url", url, "--api-key", "pnd_x", *more)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_models_text_is_shown_as_it_is_and_never_obeyed(canned: Canned) -> None:
    canned.body = json.dumps(answer(HOSTILE.replace("\ud800", ""))).encode()
    result = ask(f"{canned.url}/")
    assert result.exit_code == 0
    assert r"[/red] [bold]x :smile: \x1b[31mred\x07" in result.output
    assert "\x1b[31mred" not in result.output
    assert "{'[/x]': 1}" in result.output
    raw = ask(canned.url, "--json")
    assert json.loads(raw.output)["text"].startswith("[/red]")


def test_a_receipt_that_looks_like_markup_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(ReasonAnswer.model_validate(answer("[/]")))
    assert capsys.readouterr().out.count("[/]") == 4


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (
            429,
            b'{"error": {"message": "over [/red] budget \\u001b[0m"}}',
            r"HTTP 429: over [/red] budget \x1b[0m",
        ),
        (404, b'{"detail": "Not Found"}', "HTTP 404: no error of Pondera"),
        (500, b'{"error": "x"}', "HTTP 500: no error of Pondera"),
        (502, b'["error"]', "HTTP 502: no error of Pondera"),
        (503, b'{"error": {"message": null}}', "HTTP 503: no error of Pondera"),
        (502, b"<html>", "HTTP 502: no error of Pondera"),
        (200, b'{"hello": 1}', "no answer of Pondera"),
        (200, b"[1]", "no answer of Pondera"),
        (200, b"<html>", "no answer of Pondera"),
    ],
)
def test_a_foreign_or_failed_answer_is_one_line_and_status_1(
    canned: Canned, status: int, body: bytes, says: str
) -> None:
    canned.status, canned.body = status, body
    result = ask(canned.url)
    assert result.exit_code == 1
    assert result.output.startswith("pondera: ")
    assert says in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "ftp://x", "http://[", "http://\ud800"])
def test_a_server_that_cannot_be_reached_is_one_line_and_status_1(url: str) -> None:
    result = ask(url)
    assert result.exit_code == 1
    assert "pondera: no answer from" in result.output


def test_control_characters_are_written_out_but_lines_are_kept() -> None:
    assert printable("a\tb\nc\r\x00\x9b\ud800é") == r"a" "\tb\nc" r"\r\x00\x9b\ud800" "é"


def test_a_url_has_brackets_around_an_ipv6_address() -> None:
    assert url_of("::1", 80) == "http://[::1]:80"
    assert url_of("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert url_of("localhost", 80) == "http://localhost:80"


async def test_the_first_start_makes_a_tenant_with_a_key_that_works(store: StoreClient) -> None:
    tenants = TenantStore(store)
    door = await open_door(tenants)
    assert door.key is not None
    assert (found := await tenants.authenticate(door.key)) is not None
    assert found.name == door.tenant == "default"
    assert await open_door(tenants) == Door("default", None)


async def test_the_hint_names_a_tenant_that_exists(store: StoreClient) -> None:
    tenants = TenantStore(store)
    await tenants.add("zeta", Budget())
    await tenants.add("beta", Budget())
    assert await open_door(tenants) == Door("beta", None)
    await tenants.add("default", Budget())
    assert await open_door(tenants) == Door("default", None)


def hint(config: Path | None = None, **overrides: Any) -> list[str]:
    """The words of the command for another key."""
    text = announcement(load(config, overrides), config, 1, Door("acme", None))
    (line,) = [x for x in text.splitlines() if "for another: " in x]
    return shlex.split(line.split("for another: ")[1])


def test_the_hint_leads_to_this_servers_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hint()[1:] == ["tenants", "add-key", "acme"]
    state = tmp_path / "a state"
    assert hint(state_dir=state)[1:] == ["tenants", "add-key", "acme", "--state-dir", str(state)]
    config = tmp_path / "my settings.yaml"
    config.write_text("redis_url: redis://user:hunter2@localhost:1/0\n")
    assert hint(config)[1:] == ["tenants", "add-key", "acme", "--config", str(config)]
    given = hint(redis_url="redis://user:hunter2@localhost:1/0")
    assert given[0] == "PONDERA_REDIS_URL=…"
    assert "hunter2" not in " ".join(given)
    monkeypatch.setenv("PONDERA_REDIS_URL", "redis://user:hunter2@localhost:1/0")
    assert hint()[1:] == ["tenants", "add-key", "acme"]


def test_the_curl_line_works_in_a_shell_with_and_without_a_key() -> None:
    for key, environment, sent in (("pnd_a", {}, "pnd_a"), (None, {"PONDERA_API_KEY": "pnd_b"}, "pnd_b")):
        text = announcement(load(None, {"host": "::1"}), None, 7, Door("default", key))
        assert text.startswith("\nPondera listens on http://[::1]:7\n")
        command = text[text.index("curl") :].replace("curl", "printf '%s\\n'", 1)
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=True
        )
        words = done.stdout.splitlines()
        assert words[1] == "http://[::1]:7/v1/reason"
        assert f"Authorization: Bearer {sent}" in words
        assert json.loads(words[-1])["model"] == "tiny-reasoner"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionError("no cluster at [/red]"), "pondera: no cluster at [/red]\n"),
        (RuntimeError("a raylet died"), "pondera: a raylet died\n"),
        (KeyError(), "pondera: KeyError\n"),
    ],
)
def test_an_error_at_the_start_is_a_line_and_status_1_and_makes_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def deploy(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(serve_command, "deploy", deploy)
    result = run("serve", "--port", "0", "--state-dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.endswith(says)
    assert "Traceback" not in result.output
    assert "shown this once" not in result.output


def test_an_address_that_cannot_be_bound_is_said_with_brackets(tmp_path: Path) -> None:
    result = run("serve", "--host", "2001:db8::1", "--port", "9", "--state-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "pondera: " in result.output
    assert "[2001:db8::1]:9" in result.output


def child(script: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("w") as stream:
        return subprocess.Popen([sys.executable, "-c", script], stdout=stream)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("print('Pondera listens on http://x:1')", "ended with status 0"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import time; time.sleep(60)", "did not start within 0.5 s"),
        ("import time; print('listens on u\\ncurl', flush=True); time.sleep(60)", "no URL or no key"),
    ],
)
def test_the_demo_never_waits_for_ever(tmp_path: Path, script: str, says: str) -> None:
    output = tmp_path / "out"
    process = child(script, output)
    try:
        with pytest.raises(SystemExit, match=says):
            demo.announced(process, output, 10 if "60" not in script or "curl" in script else 0.5)
    finally:
        process.kill()
        process.wait()


def test_the_demo_reads_what_a_server_announces(tmp_path: Path) -> None:
    output = tmp_path / "out"
    text = announcement(load(), None, 7, Door("default", "pnd_a"))
    process = child(f"import time; print({text!r}, flush=True); time.sleep(60)", output)
    try:
        assert demo.announced(process, output, 20) == ("http://127.0.0.1:7", "pnd_a")
    finally:
        process.kill()
        process.wait()


def test_the_demo_takes_no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDERA_PORT", "1")
    monkeypatch.setenv("pondera_redis_url", "redis://x")
    monkeypatch.setenv("HARMLESS", "1")
    environment = demo.environment(os.environ)
    assert environment["HARMLESS"] == "1"
    assert not any(name.upper().startswith("PONDERA_") for name in environment)
