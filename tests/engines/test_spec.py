from __future__ import annotations

from typing import Any

import pytest

from engines import sglang_cpu, sglang_cuda
from engines.spec import CLOSED_ARGUMENTS, OWN_ARGUMENTS, EngineSpec, server_argument_names

SOUND: dict[str, Any] = {"name": "tiny", "model_path": "/models/tiny", "max_total_tokens": 1000}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"role": "judge"}, "role"),
        ({"engine_args": {"is_embedding": True}}, "role"),
        ({"role": "reward", "engine_args": {"enable_lora": True}}, "enable_lora"),
        ({"device": "tpu"}, "device"),
        ({"dtype": "int4"}, "dtype"),
        ({"max_total_tokens": 0}, "max_total_tokens"),
        ({"max_total_tokens": None}, "max_total_tokens"),
        ({"context_tokens": 1}, "context_tokens"),
        ({"threads": 0}, "threads"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"max_running_requests": 0}, "max_running_requests"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"engine_args": {"max_runing_requests": 3}}, "max_runing_requests"),
        ({"engine_args": {"device": "cuda"}}, "device"),
        ({"engine_args": {"skip_tokenizer_init": True}}, "skip_tokenizer_init"),
    ],
)
def test_a_wrong_spec_is_refused_by_the_name_of_what_is_wrong(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EngineSpec(**{**SOUND, **change})


def test_an_engine_argument_that_a_field_sets_is_refused_with_that_field() -> None:
    with pytest.raises(ValueError, match="through the field 'context_tokens'"):
        EngineSpec(**SOUND, engine_args={"context_length": 100})


def test_arguments_of_sglang_are_taken_and_cannot_be_changed_from_outside() -> None:
    arguments = {"schedule_policy": "lof"}
    spec = EngineSpec(**SOUND, engine_args=arguments)
    arguments["nonsense"] = "x"
    assert spec.engine_args == {"schedule_policy": "lof"}


def test_all_arguments_that_the_profiles_set_exist_in_this_sglang() -> None:
    names = {*OWN_ARGUMENTS, *CLOSED_ARGUMENTS, *sglang_cpu.ARGUMENTS, *sglang_cuda.ARGUMENTS}
    assert names <= server_argument_names()


def test_case_24_a_cuda_engine_says_which_fields_it_cannot_honour() -> None:
    assert sglang_cuda.unavailable(sglang_cuda.ARGUMENTS) == {"min_p"}
    assert sglang_cuda.unavailable({"enable_deterministic_inference": False}) == {"seed"}
    assert sglang_cpu.unavailable(sglang_cpu.ARGUMENTS) == frozenset()
