"""`pondera ask`."""

from __future__ import annotations

from typing import Annotated

import httpx
import typer
from rich.table import Table
from rich.text import Text

from orchestrator.request import EFFORTS
from services.api.reason_schema import ReasonAnswer
from services.cli.options import fail
from services.cli.terminal import plain_console, printable

TIMEOUT_S = 600.0


def ask(
    query: Annotated[str, typer.Argument(help="The question.")],
    model: Annotated[str, typer.Option("--model", "-m")] = "tiny-reasoner",
    effort: Annotated[str | None, typer.Option("--effort", "-e", help=" | ".join(EFFORTS))] = None,
    technique: Annotated[str | None, typer.Option("--technique", "-t")] = None,
    max_total_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    deadline_ms: Annotated[int | None, typer.Option(min=1)] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    base_url: Annotated[str, typer.Option(envvar="PONDERA_BASE_URL")] = "http://127.0.0.1:8080",
    api_key: Annotated[str | None, typer.Option(envvar="PONDERA_API_KEY", show_envvar=True)] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
) -> None:
    """Ask a running server and print the answer with its receipt."""
    if api_key is None:
        fail("no API key; set PONDERA_API_KEY or give --api-key", 2)
    body = {
        "model": model,
        "query": query,
        "effort": effort,
        "technique": technique,
        "max_total_tokens": max_total_tokens,
        "deadline_ms": deadline_ms,
        "seed": seed,
    }
    try:
        with plain_console(stderr=True).status("thinking"):
            response = httpx.post(
                f"{base_url.rstrip('/')}/v1/reason",
                json={k: v for k, v in body.items() if v is not None},
                headers={"Authorization": f"Bearer {api_key}"},
                timeout=TIMEOUT_S,
                trust_env=False,
            )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
        fail(f"no answer from {base_url}: {e}")
    if response.status_code != 200:
        fail(f"HTTP {response.status_code}: {_refusal(response) or f'no error of Pondera from {base_url}'}")
    try:
        answer = ReasonAnswer.model_validate_json(response.content)
    except ValueError:
        fail(f"HTTP 200, but no answer of Pondera from {base_url}")
    if json_:
        print(response.text)
        return
    show(answer)


def _refusal(response: httpx.Response) -> str | None:
    """The message of an error object; None for any other body."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return None
    return message if isinstance(message, str) else None


def show(answer: ReasonAnswer) -> None:
    """Print an answer of `/v1/reason` with its receipt."""
    console = plain_console()
    receipt = answer.receipt
    tokens, calls = receipt.tokens, receipt.calls
    console.print(printable(answer.text), soft_wrap=True)
    line = Text("\n").append("answer", "bold").append(f" {printable(str(answer.answer))}   ")
    console.print(line.append("status", "bold").append(f" {answer.status}"))
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "technique": f"{receipt.technique} {receipt.params} ({receipt.why})",
        "stopped": receipt.stop_reason,
        "branches": ", ".join(f"{n} {fate}" for fate, n in receipt.fates.items()),
        "support": "-" if receipt.support is None else f"{receipt.support:.2f}",
        "charged": f"{tokens.charged} of at most {receipt.cap} tokens: prompt {tokens.prompt}, "
        f"generated {tokens.generated}, verifier {tokens.verifier}",
        "all samples": f"would have been charged about {receipt.fixed_n_tokens}",
        "prefill": f"{tokens.prefill_fresh} fresh, {tokens.prefill_cached} from the cache",
        "calls": f"{calls.generate} generate, {calls.verifier} verifier, {calls.failed} failed",
        "time": f"{receipt.elapsed_ms} ms, seed {receipt.seed}",
    }
    if receipt.fixed_n_tokens is None:
        del rows["all samples"]
    for name, value in rows.items():
        table.add_row(name, printable(value))
    console.print(table)
