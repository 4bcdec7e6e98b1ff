"""The runner with techniques that write step by step, judge, and write things themselves."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from guards.ledger import Ledger
from guards.tenants import Tenant
from orchestrator.request import RequestRefused, SamplingWish, VerifierWish
from support.world import EOS, scripted_model
from tests.orchestrator.test_service import Desk

PROMPT = "u:hi\na:"


def lines(ids: tuple[int, ...], seed: int | None) -> Sequence[int]:
    """Three steps of which each is `good` or `poor` by the seed, then the answer: 7 when all were good."""
    text = "".join(map(chr, ids)).removeprefix(PROMPT)
    done = text.count("\n")
    out = ""
    while done < 3:
        digest = hashlib.blake2b(f"{seed}/{done}".encode(), digest_size=1).digest()[0]
        out += "good\n" if digest % 2 else "poor\n"
        done += 1
    answer = "8" if "poor" in text + out else "7"
    return [*map(ord, f"{out}Answer: {answer}"), EOS]


def worth(ids: tuple[int, ...], _: tuple[int, ...]) -> list[float]:
    return [0.1, 0.9] if "poor" in "".join(map(chr, ids)) else [0.9, 0.1]


Make = Callable[..., Desk]


@pytest.fixture
async def make(ledger: Ledger, tenant: Tenant) -> AsyncIterator[Make]:
    desks: list[Desk] = []

    def build(script: Callable[..., Sequence[int]] = lines, **options: Any) -> Desk:
        model, engine = scripted_model(script, **{"score": worth, "step_ends": ("\n",), **options})
        desks.append(Desk(ledger, tenant, model, engine))
        return desks[-1]

    yield build
    for desk in desks:
        await desk.orchestrator.close()


async def test_a_beam_writes_step_by_step_and_finds_what_a_sample_would_not(make: Make) -> None:
    desk = make()
    outcome = await desk.ask(technique="beam", params={"width": 2, "expand": 8}, seed=1)
    assert (outcome.status, outcome.answer) == ("completed", "7")
    assert outcome.text == "good\ngood\ngood\nAnswer: 7"
    assert all(r.sampling.stop == ("\n",) for r in desk.engine.requests)
    tokens = outcome.receipt.tokens
    assert tokens.generated == sum(b.tokens for b in outcome.receipt.listed)
    assert tokens.verifier == 2 * len(desk.engine.score_requests)
    assert await desk.used() == tokens.charged
    assert await desk.nothing_left()


async def test_a_child_goes_on_from_exactly_its_parents_tokens(make: Make) -> None:
    desk = make()
    await desk.ask(technique="beam", params={"width": 2, "expand": 4}, seed=1)
    starts = {"".join(map(chr, r.input_ids)).removeprefix(PROMPT) for r in desk.engine.requests}
    assert "" in starts
    assert all(s == "" or s.endswith("\n") for s in starts)


async def test_a_stop_string_of_the_request_ends_the_answer_and_not_just_a_step(make: Make) -> None:
    desk = make()
    outcome = await desk.ask(
        technique="beam",
        params={"width": 2, "expand": 2},
        seed=1,
        sampling=SamplingWish(stop=("oo",)),
    )
    assert all(set(r.sampling.stop) == {"\n", "oo"} for r in desk.engine.requests)
    assert "oo" not in outcome.text


async def test_a_check_ends_a_best_of_n_at_the_first_right_answer(make: Make) -> None:
    desk = make()
    outcome = await desk.ask(
        technique="best_of_n",
        params={"n": 32, "width": 4, "by": "check", "score_batch": 1},
        verifiers=(VerifierWish("exact", expected="7"),),
        seed=1,
    )
    assert (outcome.answer, outcome.receipt.stop_reason) == ("7", "verified")
    assert outcome.receipt.generate_calls < 32


async def test_verifiers_that_differ_are_flagged_in_the_receipt(make: Make) -> None:
    desk = make()
    outcome = await desk.ask(
        technique="best_of_n",
        params={"n": 2, "width": 2, "by": "check"},
        verifiers=(VerifierWish("exact", expected="8"), VerifierWish("regex", pattern="7")),
        verifier_mode="all",
        seed=1,
    )
    assert outcome.receipt.disagreements >= 1


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (VerifierWish("exact"), "verifiers.0.expected"),
        (VerifierWish("regex", pattern="("), "verifiers.0.pattern"),
        (VerifierWish("json_schema", schema='{"type": 3}'), "verifiers.0.schema"),
        (VerifierWish("json_schema", schema='{"pattern": "(a+)+"}'), "verifiers.0.schema"),
        (VerifierWish("judge"), "verifiers.0.kind"),
        (VerifierWish("code", asserts="assert 1"), "verifiers.0.kind"),
    ],
)
async def test_a_verifier_that_cannot_be_had_is_refused_by_name(
    make: Make, wish: VerifierWish, field: str
) -> None:
    with pytest.raises(RequestRefused) as caught:
        await make().ask(technique="best_of_n", verifiers=(wish,))
    assert caught.value.field == field
