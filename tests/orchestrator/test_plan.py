from __future__ import annotations

from typing import Any

import pytest

from orchestrator.plan import Plan, make_plan
from orchestrator.request import Message, ReasonRequest, RequestRefused, SamplingWish
from orchestrator.settings import LimitSettings
from orchestrator.verifiers.build import Toolbox
from support.world import answers, scripted_model

PROMPT = "u:hi\na:"


def plan(model_options: dict[str, Any] | None = None, **fields: Any) -> Plan:
    model, _ = scripted_model(answers("x"), **(model_options or {}))
    fields = {"messages": (Message("user", "hi"),), "model": "toy", **fields}
    limits = LimitSettings(max_total_tokens=5000)
    return make_plan(ReasonRequest(**fields), model, limits, seed=1, tools=Toolbox())


def refused(**fields: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as e:
        plan(**fields)
    return e.value


@pytest.mark.parametrize(
    ("effort", "scorable", "technique", "n"),
    [
        ("low", True, "single", None),
        ("medium", True, "self_consistency", 10),
        ("high", True, "best_of_n", 16),
        ("max", True, "best_of_n", 32),
        ("auto", True, "self_consistency", 10),
        ("auto", False, "self_consistency", 8),
        ("high", False, "self_consistency", 16),
        ("max", False, "self_consistency", 32),
    ],
)
def test_an_effort_names_a_technique(effort: Any, scorable: bool, technique: str, n: int | None) -> None:
    p = plan({"scorable": scorable}, effort=effort)
    assert p.technique.name == technique
    assert getattr(p.params, "n", None) == n
    assert effort in p.why


def test_the_default_cap_is_what_the_plan_can_cost_at_most() -> None:
    p = plan(effort="high")
    assert p.cap == len(PROMPT) + 16 * (64 + 2)


def test_a_cap_below_the_worst_case_holds() -> None:
    assert plan(effort="high", max_total_tokens=300).cap == 300


def test_case_11_a_giant_limit_is_clamped_to_the_context_and_reserves_no_more() -> None:
    p = plan(effort="low", max_new_tokens=999_999_999, max_total_tokens=999_999_999)
    assert p.limits.max_new_tokens == 512 - len(PROMPT)
    assert p.cap == 512


def test_case_25_what_the_client_says_of_sampling_reaches_the_plan() -> None:
    wish = SamplingWish(temperature=0.3, top_p=0.5, top_k=7, min_p=0.1, stop=("z",), logit_bias=((5, 1.0),))
    s = plan(sampling=wish, max_new_tokens=17).sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p) == (0.3, 0.5, 7, 0.1)
    assert (s.stop, s.logit_bias, s.max_new_tokens) == (("z",), ((5, 1.0),), 17)


def test_one_sample_is_greedy_and_many_are_not_unless_told() -> None:
    assert plan(effort="low").sampling.temperature == 0
    assert plan(effort="high").sampling.temperature == 0.8


def test_temperature_zero_draws_one_sample_and_says_so() -> None:
    p = plan(effort="high", sampling=SamplingWish(temperature=0))
    assert p.technique.name == "single"
    assert "equal" in p.why


def test_temperature_zero_for_a_named_vote_is_refused() -> None:
    e = refused(technique="self_consistency", sampling=SamplingWish(temperature=0))
    assert (e.field, e.status) == ("temperature", 400)


def test_an_unknown_technique_is_refused_with_the_legal_ones() -> None:
    e = refused(technique="tarot")
    assert e.field == "technique"
    assert "single" in str(e)


@pytest.mark.parametrize(
    ("params", "field"), [({"n": 0}, "params"), ({"n": "many"}, "params.n"), ({"nn": 3}, "params.nn")]
)
def test_wrong_parameters_are_refused_by_name(params: dict[str, object], field: str) -> None:
    e = refused(technique="best_of_n", params=params)
    assert e.field == field
    assert "n" in str(e)


def test_parameters_without_a_technique_are_refused() -> None:
    assert refused(params={"n": 3}).field == "params"


def test_a_technique_that_needs_a_verifier_is_refused_where_there_is_none() -> None:
    e = refused(model_options={"scorable": False}, technique="best_of_n")
    assert e.code == "no_verifier"
    assert "self_consistency" in str(e)


def test_a_cap_too_small_for_the_prompt_names_the_least() -> None:
    e = refused(effort="low", max_total_tokens=len(PROMPT))
    assert e.field == "max_total_tokens"
    assert str(len(PROMPT) + 1) in str(e)


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    e = refused(messages=(Message("user", "x" * 600),))
    assert e.code == "context_length_exceeded"


def test_a_deadline_above_the_limit_is_refused_with_the_limit() -> None:
    assert "600000" in str(refused(deadline_ms=700_000))


def test_a_system_message_that_the_template_would_drop_is_refused() -> None:
    messages = (Message("system", "be brief"), Message("user", "hi"))
    assert plan(messages=messages)
    e = refused(model_options={"drops_system": True}, messages=messages)
    assert e.code == "system_message_unsupported"


@pytest.mark.parametrize("value", [10**30, "\ud800", [[[]]], {"a": {}}])
def test_a_parameter_of_any_odd_value_is_a_refusal(value: object) -> None:
    assert refused(technique="best_of_n", params={"n": value}).code == "invalid_params"


def test_a_parameter_of_an_odd_name_is_a_refusal_that_can_be_sent() -> None:
    e = refused(technique="best_of_n", params={"\ud800": 1})
    assert str(e).encode()
    assert e.field is not None
    assert e.field.encode()


def test_a_sample_under_a_grammar_fits_whole_under_the_cap() -> None:
    p = plan(effort="low", sampling=SamplingWish(json_schema="{}"), max_total_tokens=40)
    assert p.limits.whole
    assert p.limits.max_new_tokens == 40 - len(PROMPT)
    assert not plan(effort="low").limits.whole
