from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engines import actor as actor_module
from engines import sglang_errors
from engines.actor import EngineActor
from engines.protocol import (
    Chunk,
    EngineError,
    EngineInfo,
    EngineRefused,
    GenerateRequest,
    Sampling,
    ScoreRequest,
)
from engines.spec import EngineSpec
from engines.wire import pack_operations, unpack_reports

SECRET = "/srv/models/x.py: prompt 'my password'"


class Broken:
    """An engine that fails in ways nobody thought of."""

    worker_pids: tuple[int, ...] = ()

    def __init__(self, spec: EngineSpec) -> None:
        self.aborted: list[str] = []

    async def freeze_garbage(self) -> None:
        return None

    def expect(self, count: int) -> None:
        return None

    async def info(self) -> EngineInfo:
        return EngineInfo("m", "e", "1", "cpu", "float32", 10, 10, 1)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        yield Chunk((1,))
        raise KeyError(SECRET)

    async def score(self, request: ScoreRequest) -> None:
        raise RuntimeError(SECRET)

    async def abort(self, call_ids: list[str]) -> None:
        self.aborted += call_ids


async def test_an_unexpected_failure_reaches_the_client_by_its_type_alone_and_the_log_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(actor_module, "SGLangEngine", Broken)
    actor = EngineActor(EngineSpec("x", "/nowhere", max_total_tokens=100), 10.0)
    stream = actor.stream("client")
    incarnation = (await anext(stream)).decode()
    calls = [
        ("call", 1, GenerateRequest("a", (1,), Sampling(5))),
        ("call", 2, ScoreRequest("b", (1,), (2, 3))),
    ]
    assert await actor.submit("client", incarnation, pack_operations(calls))  # type: ignore[arg-type]
    errors: dict[int, str] = {}
    async with asyncio.timeout(5):
        while len(errors) < 2:
            reports = unpack_reports(await anext(stream))
            errors |= {number: str(what) for number, what in reports if isinstance(what, EngineError)}
    await stream.aclose()  # type: ignore[attr-defined]
    assert errors == {1: "the engine failed: KeyError", 2: "the engine failed: RuntimeError"}
    logged = capsys.readouterr().err
    assert logged.count("my password") >= 2
    assert "Traceback" in logged


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "the engine refused the call"),
        (503, "the engine is too busy for the call"),
        (500, "the engine failed to serve the call"),
    ],
)
def test_what_sglang_says_is_logged_and_not_passed_on(
    status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = GenerateRequest("a", (1,), Sampling(5))
    error = sglang_errors.ended({"type": "abort", "message": SECRET, "status_code": status}, request)
    assert str(error) == message
    assert not isinstance(error, EngineRefused)
    assert SECRET in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("regex", "(["), ("json_schema", "{}")])
def test_a_grammar_that_does_not_compile_is_refused_by_its_field(name: str, value: str) -> None:
    request = GenerateRequest("a", (1,), Sampling(5, **{name: value}))  # type: ignore[arg-type]
    reason = {"message": f"Failed to compile {name} grammar: {SECRET}", "status_code": 400}
    error = sglang_errors.ended(reason, request)
    assert isinstance(error, EngineRefused)
    assert (error.field, str(error)) == (name, f"{name} cannot be compiled")


def test_a_long_refusal_is_cut_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(sglang_errors.refused(ValueError("x" * 100_000))) == "the engine refused the call"
    assert len(capsys.readouterr().err) < 5_000
