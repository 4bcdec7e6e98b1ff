from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.models import KNOWN_MODELS, RewardHeadForm
from engines.tokenizer import ModelTokenizer
from orchestrator.verifiers.generative import ProcessReward
from orchestrator.verifiers.reward_head import RewardHead, RewardUnreadable, make_reward_head
from support.byte_model import write_byte_model

TINY = Path(__file__).parents[2] / "infra" / "models" / "tiny_reasoner" / "model"
NEWLINE, EOS, JUDGE = 7, 8, 9
HEAD = RewardHead(suffix_ids=(JUDGE,), strip_ids=frozenset({NEWLINE, EOS}))


def test_a_path_is_stripped_at_its_end_and_followed_by_the_suffix() -> None:
    assert HEAD.input_ids((1, 2, 3, NEWLINE, 4, NEWLINE, EOS), 2) == (1, 2, 3, NEWLINE, 4, JUDGE)
    assert HEAD.tokens == 1


def test_the_prompt_is_never_stripped() -> None:
    assert HEAD.input_ids((1, NEWLINE, NEWLINE), 2) == (1, NEWLINE, JUDGE)
    assert HEAD.input_ids((1, NEWLINE), 2) == (1, NEWLINE, JUDGE)


def test_a_path_is_put_to_the_head_as_it_is_to_the_generative_form() -> None:
    generative = ProcessReward((JUDGE,), 1, 2, frozenset({NEWLINE, EOS}))
    for path in [(1, 2, 3), (1, 2, NEWLINE), (1, NEWLINE, EOS)]:
        assert HEAD.input_ids(path, 1) == generative.input_ids(path, 1)


def test_a_sigmoid_takes_a_logit_to_a_probability() -> None:
    assert HEAD.score([0.0]) == 0.5
    assert HEAD.score([math.log(3)]) == pytest.approx(0.75)
    assert HEAD.score([-math.log(3)]) == pytest.approx(0.25)
    assert (HEAD.score([-1e5]), HEAD.score([1e5])) == (0.0, 1.0)


def test_an_identity_takes_what_lies_in_0_to_1_and_nothing_else() -> None:
    head = RewardHead(activation="identity")
    assert [head.score([value]) for value in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    assert (head.score([-0.0005]), head.score([1.0005])) == (0.0, 1.0)
    for value in (-0.1, 1.1, 7.0):
        with pytest.raises(RewardUnreadable):
            head.score([value])


def test_a_softmax_reads_one_output_among_all() -> None:
    head = RewardHead(activation="softmax", output=1)
    assert head.score([0.0, math.log(3)]) == pytest.approx(0.75)
    assert head.score([1e5, -1e5]) == pytest.approx(0.0)
    assert head.score([-1e5, 1e5]) == 1.0
    with pytest.raises(RewardUnreadable):
        RewardHead(activation="softmax").score([1.0])


@given(
    st.sampled_from(["sigmoid", "softmax"]),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=4),
)
def test_every_finite_logit_has_a_score_in_0_to_1(activation: str, outputs: list[float]) -> None:
    score = RewardHead(activation=activation).score(outputs)  # type: ignore[arg-type]
    assert 0.0 <= score <= 1.0


@pytest.mark.parametrize("outputs", [[], [0.1], [0.1, math.nan], [math.inf, 0.1]])
def test_outputs_that_cannot_be_read_give_no_score(outputs: list[float]) -> None:
    with pytest.raises(RewardUnreadable):
        RewardHead(output=1).score(outputs)


@pytest.mark.parametrize(
    ("change", "field"), [({"activation": "relu"}, "activation"), ({"output": -1}, "output")]
)
def test_an_illegal_form_is_refused_by_its_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}:"):
        RewardHead(**change)  # type: ignore[arg-type]


def test_the_form_of_a_known_model_is_read_in_its_own_tokens() -> None:
    form = KNOWN_MODELS["tiny-reasoner-prm"].reward_head
    assert form is not None
    tiny = ModelTokenizer(TINY)
    head = make_reward_head(form, tiny, ModelTokenizer(TINY))
    assert head.suffix_ids == (tiny.token_id("<|judge|>"),)
    assert head.strip_ids == {tiny.token_id("\n"), *tiny.eos_ids}
    assert (head.activation, head.output) == ("sigmoid", 0)


def test_a_head_with_another_vocabulary_than_the_policys_is_refused(tmp_path: Path) -> None:
    other = ModelTokenizer(write_byte_model(tmp_path))
    with pytest.raises(ValueError, match="vocabulary"):
        make_reward_head(RewardHeadForm(), other, ModelTokenizer(TINY))


def test_tokenizers_of_one_vocabulary_have_one_fingerprint(tmp_path: Path) -> None:
    a, b = (ModelTokenizer(write_byte_model(tmp_path / name)) for name in "ab")
    assert a.fingerprint == b.fingerprint != ModelTokenizer(TINY).fingerprint
