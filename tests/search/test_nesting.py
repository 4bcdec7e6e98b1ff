"""Inner techniques and their params: one verdict, whoever asks."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from pydantic import TypeAdapter

from search.cascade import CascadeParams
from search.contract import Costs
from search.extract import ThinkingMarkers
from search.log import EventLog, Header, build
from search.nesting import MAX_DEPTH, BadParam, Stage, stages_of
from search.nesting_params import read_params
from search.refine import RefineParams
from search.registry import TECHNIQUES
from search.sample import SampleLimits
from search.segments import THINK_AGAIN
from search.self_consistency import SelfConsistencyParams
from search.single import SingleParams
from tests.search.drive import LIMITS, PHRASES, PROMPT, World, says
from tests.search.steps_world import STEP_LIMITS

VOTE = Stage("self_consistency", {"n": 4})
NESTED = CascadeParams(
    (VOTE, Stage("refine", {"first": {"technique": "best_of_n", "params": {"n": 3}}, "rounds": 1}, tier=2))
)


def header(params: Any) -> Header:
    name = next(t.name for t in TECHNIQUES.values() if isinstance(params, t.params_type))
    return Header(name, params, LIMITS, Costs(), 7, PROMPT, PHRASES)


def deep(levels: int) -> RefineParams:
    stage = Stage("single")
    for _ in range(levels - 2):
        stage = Stage("refine", {"first": stage})
    return RefineParams(first=stage)


BAD: list[tuple[Any, str, str]] = [
    (CascadeParams((VOTE, Stage("magic"))), "stages.1.technique", "must be one of single, self_consistency"),
    (CascadeParams((VOTE, Stage("single", {"m": 1}))), "stages.1.params.m", "legal: max_retries"),
    (CascadeParams((VOTE, Stage("self_consistency", {"n": 0}))), "stages.1.params.n", "in 1..1024, not 0"),
    (CascadeParams((VOTE, Stage("self_consistency", {"n": "x"}))), "stages.1.params.n", "whole number"),
    (CascadeParams((VOTE, Stage("self_consistency", {"stop": 1}))), "stages.1.params.stop", "must be one of"),
    (RefineParams(first=Stage("beam", {"width": None})), "first.params.width", "whole number"),
    (
        RefineParams(first=Stage("cascade", {"stages": [{"technique": "single"}]})),
        "first.params.stages",
        "must be 2..8 stages",
    ),
    (
        RefineParams(first=Stage("cascade", {"stages": [VOTE, {"technique": "single", "params": {"n": 1}}]})),
        "first.params.stages.1.params.n",
        "there is no such parameter",
    ),
    (
        RefineParams(first=Stage("cascade", {"stages": [VOTE, {"technique": "single", "tier": 99}]})),
        "first.params.stages.1.tier",
        "in 0..15",
    ),
    (RefineParams(first=Stage("cascade", {"stages": VOTE})), "first.params.stages", "must be 2..8 stages"),
    (RefineParams(first=Stage("refine", {"first": 7})), "first.params.first", "must be a stage"),
    (RefineParams(first=Stage("cascade", {"check": 1})), "first.params.check", "must be true or false"),
    (RefineParams(first=Stage("single", {"think_tokens": 1.5})), "first.params.think_tokens", "whole number"),
    (deep(MAX_DEPTH + 1), "first.params.first.params.first", "at most 3 techniques"),
]


@pytest.mark.parametrize(("params", "path", "why"), BAD, ids=[path for _, path, _ in BAD])
def test_a_bad_inner_parameter_is_refused_alike_by_a_check_a_build_and_a_log(
    params: Any, path: str, why: str
) -> None:
    head = header(params)
    with pytest.raises(BadParam) as caught:
        TECHNIQUES[head.technique].check(params)
    assert caught.value.path == path
    assert why in caught.value.why
    assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(BadParam, match=r".+"):
        build(head)
    with pytest.raises(BadParam, match=r".+"):
        EventLog.from_lines(EventLog(head, 10).to_lines())


@pytest.mark.parametrize("params", [NESTED, deep(MAX_DEPTH), RefineParams(accept="scored"), CascadeParams()])
def test_nested_params_survive_a_log_and_json_byte_for_byte(params: Any) -> None:
    TECHNIQUES[header(params).technique].check(params)
    lines = EventLog(header(params), 10).to_lines()
    log = EventLog.from_lines(lines)
    assert log.header.params == params
    assert log.to_lines() == lines
    adapter = TypeAdapter(type(params))
    assert adapter.validate_json(adapter.dump_json(params), strict=True) == params


def test_params_from_json_are_those_from_python() -> None:
    given = {
        "stages": [
            {"technique": "self_consistency", "params": {"n": 4}},
            {
                "technique": "refine",
                "params": {"first": {"technique": "best_of_n", "params": {"n": 3}}, "rounds": 1},
                "tier": 2,
            },
        ]
    }
    assert TypeAdapter(CascadeParams).validate_json(json.dumps(given), strict=True) == NESTED
    assert read_params(CascadeParams, given, "params") == NESTED
    first = Stage("best_of_n", {"n": 3})
    python = CascadeParams((VOTE, Stage("refine", {"first": first, "rounds": 1}, tier=2)))
    inner = read_params(RefineParams, python.stages[1].params, "")
    assert inner == RefineParams(first=first, rounds=1)


def test_the_needs_and_phrases_of_a_nest_are_those_of_all_within_it() -> None:
    technique = TECHNIQUES["cascade"]
    assert technique.needs(NESTED) == {"score"}
    assert set(technique.phrases(NESTED)) == {"critique", "revise"}
    again = CascadeParams((VOTE, Stage("single", {"think_again": 1})))
    assert technique.phrases(again) == {THINK_AGAIN: "Wait"}
    assert TECHNIQUES["single"].phrases(SingleParams()) == {}


@pytest.mark.parametrize(
    ("name", "params", "tokens"),
    [
        ("single", SingleParams(max_retries=1), 200),
        ("self_consistency", SelfConsistencyParams(n=5, max_retries=3), 800),
    ],
)
def test_the_most_tokens_count_all_samples_retries_and_scores(name: str, params: Any, tokens: int) -> None:
    technique = TECHNIQUES[name]
    assert technique.most_tokens(params, LIMITS, Costs(score_tokens=2), len(PROMPT)) == tokens


def test_the_most_tokens_are_bounded_by_the_context_and_count_what_is_taken_back() -> None:
    technique = TECHNIQUES["single"]
    limits = SampleLimits(100, 60, ThinkingMarkers())
    params = SingleParams(max_retries=0, think_again=2)
    assert technique.most_tokens(params, limits, Costs(), 20) == 40 + 2 * len("</think>")


def test_a_tree_takes_a_path_for_each_of_its_widths_and_a_score_for_each_step() -> None:
    @dataclasses.dataclass(frozen=True)
    class Params:
        width: int = 4
        expand: int = 3
        max_depth: int = 8
        max_retries: int = 2

    technique = dataclasses.replace(
        TECHNIQUES["single"], params_type=Params, own_needs=lambda _: frozenset({"score"})
    )
    tokens = technique.most_tokens(Params(), LIMITS, Costs(score_tokens=2), 5)
    assert tokens == (4 * 3 + 2) * (100 + 8 * 2)


def test_params_say_themselves_how_many_samples_they_take_where_they_know() -> None:
    @dataclasses.dataclass(frozen=True)
    class Params:
        def most_samples(self) -> int:
            return 9

        def most_compares(self) -> int:
            return 2

    technique = dataclasses.replace(
        TECHNIQUES["single"], params_type=Params, own_needs=lambda _: frozenset({"compare"})
    )
    assert technique.most_tokens(Params(), LIMITS, Costs(compare_tokens=7), 5) == 9 * 100 + 2 * 7


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"technique": ""}, "technique must be the name of one"),
        ({"technique": "single", "tier": -1}, r"tier must be a whole number in 0\.\.15"),
        ({"technique": "single", "params": 7}, "params must be parameters by name"),
        ({"technique": "single", "params": {"n": {1}}}, "params must be plain data, without a set"),
    ],
)
def test_a_stage_that_is_none_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Stage(**fields)


def test_params_nested_without_end_are_refused_and_not_followed() -> None:
    endless: dict[str, object] = {}
    endless["first"] = endless
    with pytest.raises(ValueError, match="levels of lists and mappings"):
        Stage("refine", endless)


def test_stages_are_found_with_their_paths() -> None:
    assert [path for path, _ in stages_of(NESTED)] == ["stages.0", "stages.1"]
    assert [path for path, _ in stages_of(RefineParams())] == ["first", "revise"]
    assert stages_of(SingleParams()) == []


LEAVES = [name for name, t in TECHNIQUES.items() if not stages_of(t.params_type())]


@pytest.mark.parametrize("kv", [60, 100_000])
@pytest.mark.parametrize("name", LEAVES)
def test_every_technique_nests_in_a_cascade_and_in_a_refine(name: str, kv: int) -> None:
    costs = Costs(2, 3, 4)
    stage = Stage(name)
    for params in (CascadeParams((stage, stage), min_support=1.0), RefineParams(stage, stage, rounds=1)):
        head = dataclasses.replace(header(params), costs=costs, limits=STEP_LIMITS)
        search = build(head)
        world = World(
            [says(str(i % 3), 6 + i % 5, score=i / 99) for i in range(99)],
            costs=costs,
            kv_tokens=len(PROMPT) + kv,
            rng=random.Random(1),
            releases=0.2,
        )
        world.run(search)
        assert search.finished
        best = search.best()
        assert best is not None
        assert best.answer in ("0", "1", "2")
        assert sum(b.tokens for b in search.branches()) == search.tree.generated_tokens
        assert search.tree.live_tokens in (0, len(PROMPT))
        most = TECHNIQUES[head.technique].most_tokens(params, STEP_LIMITS, costs, len(PROMPT), PHRASES)
        assert world.charged <= most
