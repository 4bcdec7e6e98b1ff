"""Grammars are tried out in a real process, with the tiny reasoner's vocabulary."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines.grammar_check import GrammarCheck
from engines.protocol import EngineError, EngineRefused

MODEL = Path(__file__).parents[2] / "infra" / "models" / "tiny_reasoner" / "model"
CPU_S = 0.5

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grammars() -> AsyncIterator[GrammarCheck]:
    check = GrammarCheck(str(MODEL), (3,), cpu_s=CPU_S)
    yield check
    await check.close()


SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("regex", "x[0-9]{3}y"),
        ("regex", r"(\d+\.)*\d+"),
        ("json_schema", json.dumps(SCHEMA)),
        ("json_schema", "{}"),
    ],
)
async def test_what_compiles_and_is_cheap_to_follow_passes(
    grammars: GrammarCheck, field: str, text: str
) -> None:
    await grammars.check(field, text)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("regex", "(["),
        ("regex", "a\0b"),
        ("json_schema", '{"type": "wat"}'),
        ("json_schema", '{"pattern": "a\\u0000", "type": "string"}'),
        ("json_schema", '{"$ref": "#/nowhere"}'),
    ],
)
async def test_what_does_not_compile_is_refused_by_its_field_without_quoting_it(
    grammars: GrammarCheck, field: str, text: str
) -> None:
    with pytest.raises(EngineRefused) as refused:
        await grammars.check(field, text)
    assert refused.value.field == field
    assert str(refused.value) in (f"{field} cannot be compiled", f"{field} has a NUL character")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("regex", "a?" * 20_000),
        ("regex", "(a{1,1000}){1,1000}"),
        ("json_schema", '{"type":"object","properties":{"a":' * 1500 + "{}" + "}}" * 1500),
    ],
    ids=["never-compiles", "ever-slower", "deep"],
)
async def test_what_costs_too_much_is_refused_in_bounded_time_and_the_next_one_is_served(
    grammars: GrammarCheck, field: str, text: str
) -> None:
    await grammars.check("regex", "warm")
    started = time.monotonic()
    with pytest.raises(EngineRefused, match=r"takes too long|cannot be compiled") as refused:
        await grammars.check(field, text)
    assert refused.value.field == field
    assert time.monotonic() - started < 10
    again = time.monotonic()
    with pytest.raises(EngineRefused):
        await grammars.check(field, text)
    assert time.monotonic() - again < 0.1
    await grammars.check("regex", "[a-c]+")


async def test_a_caller_that_leaves_does_not_shift_the_answers_of_the_others(grammars: GrammarCheck) -> None:
    await grammars.check("regex", "warm")
    leaving = asyncio.create_task(grammars.check("regex", "a?" * 19_000))
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    with pytest.raises(EngineRefused):
        await grammars.check("regex", "([[")
    await grammars.check("regex", "abc")


async def test_closing_ends_the_process_and_refuses_what_comes_later() -> None:
    check = GrammarCheck(str(MODEL), (3,))
    await check.check("regex", "a")
    process = check._process
    assert process is not None
    await check.close()
    assert process.returncode is not None
    with pytest.raises(EngineError, match="now"):
        await check.check("regex", "b")


async def test_a_process_that_cannot_start_is_an_error_of_the_engine_and_not_of_the_grammar(
    tmp_path: Path,
) -> None:
    with pytest.raises(EngineError) as failed:
        await GrammarCheck(str(tmp_path), ()).check("regex", "a")
    assert not isinstance(failed.value, EngineRefused)
