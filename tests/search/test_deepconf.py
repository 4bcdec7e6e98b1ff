from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from search.contract import Chunk, Costs, Generate, Generated, Room
from search.deepconf import DeepConf, DeepConfParams
from search.ground import Ground
from search.sample import SampleLimits
from tests.search.confident_world import ConfidentWorld
from tests.search.drive import LIMITS, PROMPT, Script, World, one_by_one, says


def deepconf(**params: Any) -> DeepConf:
    return DeepConf(DeepConfParams(**params), Ground.of(PROMPT, LIMITS, Costs(), 7))


def offline(scripts: list[Script], sure: Callable[[int, int], float], **params: Any) -> DeepConf:
    n = len(scripts)
    search = deepconf(n=n, width=n, mode="offline", max_retries=0, **params)
    one_by_one(ConfidentWorld(scripts, sure=sure), search, list(range(n)))
    assert search.stop_reason == "all_done"
    return search


def answer(search: DeepConf) -> str | None:
    best = search.best()
    assert best is not None
    return best.answer


def by_script(*values: float) -> Callable[[int, int], float]:
    return lambda script, _: values[script]


def test_only_the_surest_percent_vote() -> None:
    scripts = [says("7", 4), says("7", 5), says("7", 6), says("9", 7)]
    sure = by_script(0.1, 0.1, 0.1, 0.9)
    assert answer(offline(scripts, sure, eta=100, window=2)) == "9"  # 0.9 outweighs three times 0.1
    search = offline(scripts, sure, eta=25, window=2)
    assert answer(search) == "9"
    assert [b.fate for b in search.branches()] == ["filtered"] * 3 + ["chosen"]
    assert "is below" in search.branches()[0].reason


def test_votes_weigh_their_confidence() -> None:
    scripts = [says("7", 4), says("7", 5), says("9", 6)]
    search = offline(scripts, by_script(0.4, 0.4, 0.7), eta=100, window=2)
    best = search.best()
    assert best is not None
    assert best.answer == "7"
    assert best.support == pytest.approx(0.8 / 1.5)


def test_the_lowest_group_is_where_a_sample_wavers_and_the_tail_is_how_it_ends() -> None:
    def sure(script: int, at: int) -> float:
        wavers = 3 <= at < 6
        return (0.1 if wavers else 0.9) if script == 0 else 0.6

    scripts = [says("7", 12), says("9", 13)]
    assert answer(offline(scripts, sure, eta=50, window=3, measure="lowest")) == "9"
    assert answer(offline(scripts, sure, eta=50, window=3, measure="tail")) == "7"
    assert answer(offline(scripts, sure, eta=50, window=3, measure="bottom", bottom_percent=10)) == "9"
    assert answer(offline(scripts, sure, eta=50, window=3, measure="mean")) == "7"


def test_one_sample_is_kept_however_small_the_percentage() -> None:
    scripts = [says("7", 4), says("9", 5)]
    assert answer(offline(scripts, by_script(0.2, 0.8), eta=1, window=2)) == "9"


def test_an_unsure_answer_wins_over_a_sure_text_without_one() -> None:
    prose = Script(("a long text of more than one short line, ", "and no final answer ", "in it"))
    search = offline([says("7", 4), prose], by_script(0.1, 0.9), eta=50, window=2)
    assert answer(search) == "7"


@pytest.mark.parametrize("tops", [True, False])
def test_it_works_on_an_engine_that_gives_only_drawn_tokens(tops: bool) -> None:
    search = deepconf(n=3, width=3, mode="offline", eta=100, window=2, top=20, max_retries=0)
    scripts = [says("7", 4), says("7", 5), says("9", 6)]
    one_by_one(ConfidentWorld(scripts, sure=by_script(0.2, 0.2, 0.9), tops=tops), search, [0, 1, 2])
    assert answer(search) == "9"


def test_without_any_logprobs_it_is_a_plain_vote() -> None:
    search = deepconf(n=3, width=3, mode="offline", eta=100, max_retries=0)
    one_by_one(World([says("9"), says("7"), says("7")]), search, [0, 1, 2])
    assert search.finished
    assert answer(search) == "7"


def drive(scripts: list[Script], sure: Callable[[int, int], float], **params: Any) -> tuple[DeepConf, World]:
    defaults: dict[str, Any] = {
        "n": 16,
        "width": 4,
        "mode": "online",
        "window": 3,
        "warmup": 4,
        "max_retries": 0,
    }
    search = deepconf(**{**defaults, **params})
    world = ConfidentWorld(scripts, sure=sure, rng=random.Random(5))
    world.run(search)
    return search, world


def test_consensus_after_the_warm_up_ends_the_vote() -> None:
    search, _ = drive([says("7")], lambda _, __: 0.8)
    assert search.stop_reason == "consensus"
    assert len(search.branches()) == 4


def test_nothing_but_the_warm_up_runs_before_it_is_over() -> None:
    search = deepconf(n=16, width=9, mode="online", warmup=3, window=3, max_retries=0)
    world = ConfidentWorld([says("7"), says("8"), says("9")])
    while sum(isinstance(e, Generated) for e in world.events) < 3:
        world.ask(search)
        assert len(search.branches()) <= 3
        world.tell(search, world.next_event(search))
    world.ask(search)
    assert len(search.branches()) == 3 + 9


def wavering(script: int, at: int) -> float:
    """The warm-up is sure; script 4 wavers from its 10th token on."""
    return 0.1 if script == 4 and at >= 10 else 0.8


def test_a_sample_that_falls_below_the_bar_is_ended_as_it_runs() -> None:
    warmup = [says(str(i), 20 + i) for i in range(4)]
    search, world = drive([*warmup, says("9", 80), says("1", 30)], wavering, eta=90, tau=1.0, n=6)
    branch = search.branches()[4]
    assert branch.fate == "filtered"
    assert "fell below" in branch.reason
    assert branch.tokens < 30
    assert len(world.cancelled) == 1
    assert [b.fate for b in search.branches()].count("filtered") == 1


def test_a_short_sample_below_the_bar_is_judged_at_its_end() -> None:
    warmup = [says(str(i), 20 + i) for i in range(4)]

    def sure(script: int, _: int) -> float:
        return 0.2 if script == 4 else 0.8

    search, _ = drive([*warmup, says("9", 2)], sure, window=50, tau=1.0, n=5)
    assert search.branches()[4].fate == "filtered"
    assert search.branches()[4].answer == "9"


def test_a_filtered_answer_still_beats_none() -> None:
    prose = Script(("a long text of more than one short line, ", "and no final ", "answer ", "in it"))

    def sure(script: int, _: int) -> float:
        return 0.2 if script == 1 else 0.9

    search, _ = drive([prose, says("7", 5)], sure, n=2, warmup=1, window=50)
    assert answer(search) == "7"


def test_a_warm_up_sample_that_failed_is_drawn_again() -> None:
    lost = Script(("a ",) * 9, fails_after=4)
    search, _ = drive([says("7"), lost, says("7")], lambda _, __: 0.8, max_retries=2)
    assert search.stop_reason == "consensus"
    assert [b.fate for b in search.branches()].count("failed") == 1
    assert len(search.branches()) == 5


def test_a_warm_up_that_is_lost_altogether_ends_without_an_answer() -> None:
    search, _ = drive([Script(("a ",) * 9, fails_after=4)], lambda _, __: 0.8, max_retries=1)
    assert search.stop_reason == "all_failed"


def test_case_59_a_trace_of_ten_thousand_steps_takes_bounded_memory() -> None:
    limits = SampleLimits(max_new_tokens=20_000, context_tokens=30_000)
    search = DeepConf(DeepConfParams(n=1, window=64, warmup=1), Ground.of(PROMPT, limits, Costs(), 7))
    (call,) = search.ask(Room(1, 50_000, 50_000))
    assert isinstance(call, Generate)
    for step in range(10_000):
        search.tell(Chunk(call.id, (step,), "x", (-0.1,), (-3.0,)))
    (trace,) = search._traces.values()
    assert len(trace._last) == 64
    assert len(trace._groups) <= 4096
    search.tell(Chunk(call.id, (1,), " \\boxed{7}", (-0.1,), (-3.0,)))
    search.tell(Generated(call.id, "stop"))
    assert search._traces == {}
    assert answer(search) == "7"


def test_traces_of_samples_that_ended_badly_are_let_go_of() -> None:
    search, _ = drive([says("7", 500), says("8", 500)], lambda _, __: 0.8, n=6)
    assert search.stop_reason == "all_truncated"
    assert search._traces == {}


@pytest.mark.parametrize("kv_tokens", [40, 70])
def test_under_a_tight_room_it_still_finishes(kv_tokens: int) -> None:
    for mode in ("online", "offline"):
        search = deepconf(n=6, width=6, mode=mode, window=3, warmup=2, max_retries=0)
        ConfidentWorld([says("7", 20), says("8", 21)], kv_tokens=kv_tokens).run(search)
        assert search.finished


@pytest.mark.parametrize("top", [1, 5])
def test_it_asks_for_the_likeliest_tokens(top: int) -> None:
    (call,) = deepconf(top=top).ask(Room(4, 1000, 1000))
    assert isinstance(call, Generate)
    assert call.logprobs == top


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("width", 0),
        ("mode", "both"),
        ("eta", 0.0),
        ("eta", 101.0),
        ("window", 0),
        ("measure", "highest"),
        ("measure", "tail"),
        ("bottom_percent", 0.0),
        ("top", 0),
        ("top", 21),
        ("warmup", 0),
        ("tau", 0.4),
        ("max_retries", -1),
    ],
)
def test_params_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        DeepConfParams(**{field: value})  # type: ignore[arg-type]
