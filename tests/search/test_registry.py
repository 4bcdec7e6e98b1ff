from __future__ import annotations

import dataclasses

import pytest
from pydantic import TypeAdapter, ValidationError

from search.contract import Costs, Room, Score
from search.registry import TECHNIQUES
from search.single import SingleParams
from tests.search.drive import LIMITS, PHRASES, PROMPT, World, says


@pytest.mark.parametrize("name", TECHNIQUES)
def test_every_technique_builds_with_its_defaults_and_finds_an_answer(name: str) -> None:
    technique = TECHNIQUES[name]
    assert technique.name == name
    assert technique.summary
    search = technique.build(PROMPT, technique.params_type(), LIMITS, Costs(), 7, PHRASES)
    World([says("7")]).run(search)
    best = search.best()
    assert best is not None
    assert best.answer == "7"


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_asks_for_scores_just_when_it_says_so(name: str) -> None:
    technique = TECHNIQUES[name]
    params = technique.params_type()
    world = World([says("7")])
    world.run(technique.build(PROMPT, params, LIMITS, Costs(), 7, PHRASES))
    assert any(isinstance(c, Score) for c in world.asked) is ("score" in technique.needs(params))


@pytest.mark.parametrize("name", TECHNIQUES)
def test_params_are_frozen_and_plain_enough_to_be_validated_at_the_edge(name: str) -> None:
    params_type = TECHNIQUES[name].params_type
    assert {"max_retries", "min_support"} & set(params_type.__dataclass_fields__)
    adapter = TypeAdapter(params_type)
    assert adapter.validate_python({}) == params_type()
    assert adapter.validate_json(adapter.dump_json(params_type())) == params_type()
    for name, bad in (("max_retries", -1), ("min_support", 2)):
        if name in params_type.__dataclass_fields__:
            with pytest.raises(ValidationError, match=name):
                adapter.validate_python({name: bad})
    field = dataclasses.fields(params_type)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(params_type(), field, 1)


def test_params_of_another_technique_are_refused() -> None:
    with pytest.raises(TypeError, match="SelfConsistencyParams"):
        TECHNIQUES["self_consistency"].build(PROMPT, SingleParams(), LIMITS, Costs(), 7)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TECHNIQUES["mine"] = TECHNIQUES["single"]  # type: ignore[index]


def test_a_search_is_a_function_of_its_seed() -> None:
    technique = TECHNIQUES["self_consistency"]
    one, same, other = (
        technique.build(PROMPT, technique.params_type(), LIMITS, Costs(), seed).ask(Room(4, 1000, 1000))
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
