from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from engines.protocol import EngineRefused, GenerateRequest, Sampling, ScoreRequest
from engines.sglang_params import Limits, check_score, sampling_params

LIMITS = Limits(vocabulary=100, context_tokens=50, prompt_tokens=45)
OTHER: dict[str, Any] = {
    "max_new_tokens": 7,
    "min_new_tokens": 2,
    "temperature": 0.3,
    "top_p": 0.7,
    "top_k": 11,
    "min_p": 0.1,
    "frequency_penalty": 0.4,
    "presence_penalty": -0.4,
    "repetition_penalty": 1.2,
    "stop": ("\n", "end"),
    "stop_token_ids": (4, 5),
    "ignore_eos": True,
    "seed": -3,
    "logit_bias": ((8, -2.5), (9, 100.0)),
    "json_schema": '{"type": "object"}',
    "regex": "[0-9]+",
}
NAMES = {"seed": "sampling_seed"}
FORMS: dict[str, Any] = {
    "stop": ["\n", "end"],
    "stop_token_ids": [4, 5],
    "logit_bias": {"8": -2.5, "9": 100.0},
}


def request(**change: Any) -> GenerateRequest:
    own = {name: change.pop(name) for name in list(change) if name not in Sampling.__dataclass_fields__}
    return GenerateRequest(
        "c", own.pop("input_ids", (1, 2, 3)), Sampling(**{"max_new_tokens": 9, **change}), **own
    )


def test_case_24_every_field_of_sampling_has_a_place_in_this_test() -> None:
    assert {field.name for field in fields(Sampling)} == set(OTHER)


@pytest.mark.parametrize("name", sorted(OTHER))
def test_case_24_every_field_reaches_sglang(name: str) -> None:
    params = sampling_params(request(**{name: OTHER[name]}), LIMITS, 8)
    assert params[NAMES.get(name, name)] == FORMS.get(name, OTHER[name])


def test_parameters_have_the_names_that_sglang_knows() -> None:
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("sglang")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).parent / "srt" / "sampling" / "sampling_params.py"
    classes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ClassDef)]
    known = {
        node.target.id
        for node in classes[0].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    everything = {**OTHER, "ignore_eos": False, "regex": None}
    assert set(sampling_params(request(**everything), LIMITS, 8)) <= known


def test_a_free_seed_is_drawn_anew_each_time() -> None:
    seeds = {sampling_params(request(), LIMITS, 8)["sampling_seed"] for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input_ids": ()}, "input_ids"),
        ({"input_ids": (1,) * 46}, "input_ids"),
        ({"input_ids": (100,)}, "input_ids"),
        ({"input_ids": (-1,)}, "input_ids"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 48}, "max_new_tokens"),
        ({"min_new_tokens": 10}, "min_new_tokens"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x",) * 33}, "stop"),
        ({"stop_token_ids": (100,)}, "stop_token_ids"),
        ({"stop_token_ids": (4,), "ignore_eos": True}, "stop_token_ids"),
        ({"seed": 2**63}, "seed"),
        ({"logit_bias": ((100, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((8, math.nan),)}, "logit_bias"),
        ({"logit_bias": ((8, 1.0), (8, 2.0))}, "logit_bias"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": "[" * 60_000}, "json_schema"),
        ({"json_schema": "{}", "regex": "a"}, "regex"),
        ({"regex": ""}, "regex"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 65, "logprobs": True}, "top_logprobs"),
        ({"priority": 2**63}, "priority"),
    ],
)
def test_case_24_what_cannot_be_honoured_is_refused_by_its_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(EngineRefused) as refused:
        sampling_params(request(**change), LIMITS, 8)
    assert refused.value.field == field
    assert field in str(refused.value)


@pytest.mark.parametrize("name", ["min_p", "seed"])
def test_a_field_that_the_engine_does_not_have_is_refused_unless_it_is_left_alone(name: str) -> None:
    limits = replace(LIMITS, unavailable=frozenset({name}))
    with pytest.raises(EngineRefused) as refused:
        sampling_params(request(**{name: OTHER[name]}), limits, 8)
    assert refused.value.field == name
    assert sampling_params(request(), limits, 8)["max_new_tokens"] == 9


@pytest.mark.parametrize("labels", [(), (1, 1), (100,), (-1,)])
def test_scores_need_distinct_labels_of_the_vocabulary(labels: tuple[int, ...]) -> None:
    with pytest.raises(EngineRefused) as refused:
        check_score(ScoreRequest("s", (1,), labels), LIMITS)
    assert refused.value.field == "label_ids"
