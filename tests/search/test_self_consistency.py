from __future__ import annotations

import random
from typing import Any

import pytest

from search.contract import Chunk, Costs, Generate, Generated, Room, Score
from search.ground import Ground
from search.registry import TECHNIQUES
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from tests.search.confident_world import ConfidentWorld
from tests.search.drive import LIMITS, PROMPT, Script, World, one_by_one, says

PROSE = Script(("a long text of more than one short line, ", "and no final answer in it"))


def voting(**params: Any) -> SelfConsistency:
    return SelfConsistency(SelfConsistencyParams(**params), Ground.of(PROMPT, LIMITS, Costs(), 7))


def drive(search: SelfConsistency, scripts: list[Script], order: list[int] | None = None) -> World:
    world = World(scripts)
    one_by_one(world, search, order or list(range(len(scripts))))
    return world


def ended(world: World) -> int:
    return sum(isinstance(e, Generated) for e in world.events)


def test_the_majority_wins_over_notations_of_one_number() -> None:
    search = voting(n=5, width=5, stop="none")
    drive(search, [says("3"), says("0.5"), says("1/2"), says("3"), says("\\frac{1}{2}")])
    best = search.best()
    assert best is not None
    assert (best.answer, best.key, best.support, best.tie) == ("0.5", "1/2", 3 / 5, False)


def test_case_40_dashes_group_and_the_sign_counts() -> None:
    search = voting(n=3, width=3, stop="none")
    drive(search, [says("3"), says("-3"), says("\u22123")])
    assert [b.fate for b in search.branches()] == ["outvoted", "chosen", "agreed"]


def test_case_42_alike_texts_with_other_answers_do_not_vote_together() -> None:
    search = voting(n=3, width=3, stop="none")
    drive(search, [says("42", 60), says("24", 60), says("24", 60)])
    best = search.best()
    assert best is not None
    assert (best.answer, best.support) == ("24", 2 / 3)


def test_a_tie_goes_to_the_earliest_sample_whatever_ended_first() -> None:
    for order in ([0, 1], [1, 0]):
        search = voting(n=2, width=2, stop="none")
        drive(search, [says("7"), says("9")], order)
        best = search.best()
        assert best is not None
        assert (best.answer, best.tie, best.support) == ("7", True, 0.5)


def test_case_45_empty_answers_never_win() -> None:
    search = voting(n=5, width=5, stop="none", give_up_after=5)
    empty = Script(("\\boxed{", "}"))
    drive(search, [empty, empty, says("7"), empty, Script((" ",))])
    best = search.best()
    assert best is not None
    assert (best.answer, best.support) == ("7", 1.0)
    assert [b.fate for b in search.branches()].count("no_answer") == 4


def test_beta_stops_early_and_returns_what_is_in_flight_for_cancelling() -> None:
    search = voting(n=16, width=6)
    world = drive(search, [says("7")])
    assert search.stop_reason == "confident"
    assert [b.answer for b in search.branches()].count("7") == 4
    assert len(world.cancelled) == 6 - 1
    stopped = [b for b in search.branches() if b.fate == "stopped"]
    assert len(stopped) == 5
    assert all(b.reason == "confident" for b in stopped)


def test_case_43_seven_nine_seven_does_not_stop_the_vote() -> None:
    search = voting(n=16, width=1)
    world = World([says("7"), says("9"), says("7"), says("5")])
    world.run(search, until=lambda: ended(world) == 3)
    assert not search.finished


def test_the_vote_ends_when_the_rest_cannot_change_it() -> None:
    search = voting(n=5, width=1, stop="none")
    drive(search, [says("7")])
    assert search.stop_reason == "decided"
    assert len(search.branches()) == 3


def test_without_any_answer_the_first_complete_text_is_the_best() -> None:
    search = voting(n=16, width=2)
    drive(search, [PROSE], [1, 0])
    assert search.stop_reason == "no_answers"
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer, best.node) == (True, None, search.branches()[0].nodes[-1])
    assert len(search.branches()) <= 4


def test_one_answer_keeps_the_vote_going_among_texts_without() -> None:
    search = voting(n=4, width=1, stop="none", give_up_after=2)
    drive(search, [PROSE, says("7"), PROSE, PROSE])
    best = search.best()
    assert best is not None
    assert best.answer == "7"


def test_case_28_a_sample_that_ended_early_stays_a_candidate() -> None:
    search = voting(n=3, width=3, stop="none")
    world = World([says("7", 2), says("8", 500), says("9", 500)])
    world.run(search)
    best = search.best()
    assert best is not None
    assert (best.answer, best.complete) == ("7", True)
    assert [b.fate for b in search.branches()] == ["chosen", "truncated", "truncated"]


def test_a_late_event_of_a_cancelled_call_is_ignored() -> None:
    search = voting(n=16, width=8)
    world = World([says("7")], late=True, rng=random.Random(1))
    world.run(search)
    before = (search.best(), search.tree.generated_tokens)
    assert world.cancelled
    for call in world.cancelled:
        assert search.tell(Chunk(call, (9,), "\\boxed{666}")) == []
        assert search.tell(Generated(call, "stop")) == []
    assert (search.best(), search.tree.generated_tokens) == before


def test_gain_falls_as_the_vote_agrees_and_is_zero_at_the_end() -> None:
    search = voting(n=16, width=1)
    world = World([says("7")])
    gains = []
    for votes in range(1, 5):
        world.run(search, until=lambda v=votes: ended(world) >= v)  # type: ignore[misc]
        gains.append(search.gain())
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == 0


def test_the_seconds_of_the_room_play_no_part() -> None:
    one, other = voting(), voting()
    assert one.ask(Room(4, 1000, 1000, seconds=0.1)) == other.ask(Room(4, 1000, 1000))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 1025),
        ("n", 2.5),
        ("n", True),
        ("width", 0),
        ("stop", "sometimes"),
        ("threshold", 0.2),
        ("threshold", float("nan")),
        ("min_votes", 0),
        ("give_up_after", 0),
        ("max_retries", -1),
        ("first", -1),
        ("pace", "slow"),
        ("window", 1),
        ("weight", "length"),
        ("confidence_from", "mood"),
        ("sharpness", -1.0),
        ("sharpness", float("inf")),
        ("tool_vote", "allow"),
    ],
)
def test_params_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SelfConsistencyParams(**{field: value})  # type: ignore[arg-type]


def test_a_query_that_most_samples_write_no_answer_to_is_not_voted_on() -> None:
    search = voting(n=8, width=3, give_up_after=2)
    prose = Script(("a text that ends without", " any final answer in it"))
    drive(search, [says("7"), prose, prose, prose, says("7")], [0, 1, 2, 3, 4])
    assert search.stop_reason == "no_answers"
    assert len([b for b in search.branches() if b.fate == "no_answer"]) == 2
    best = search.best()
    assert best is not None
    assert best.answer == "7"


def test_case_38_one_of_eight_samples_fails_and_seven_are_voted_on() -> None:
    search = voting(n=8, width=8, stop="none", max_retries=0)
    lost = Script(("step ",) * 6, fails_after=3)
    drive(search, [says("7"), says("9"), lost, *[says("7"), says("9")] * 2, says("7")])
    fates = [b.fate for b in search.branches()]
    assert fates.count("failed") == 1
    assert search.branches()[2].reason == "engine lost"
    best = search.best()
    assert best is not None
    assert (best.answer, best.support) == ("7", 4 / 7)


def test_case_41_notations_of_one_half_are_one_group_and_the_last_box_counts() -> None:
    search = voting(n=4, width=4, stop="none")
    several = Script(("\\boxed{9} no, ", "\\boxed{0.5}"))
    drive(search, [says("\\frac{1}{2}"), says("0.5"), says("1/2"), several])
    best = search.best()
    assert best is not None
    assert (best.key, best.support) == ("1/2", 1.0)


@pytest.mark.parametrize("stop", ["beta", "window", "confidence"])
def test_case_43_no_stopping_rule_takes_seven_nine_seven_for_agreement(stop: str) -> None:
    search = voting(n=16, width=1, stop=stop, weight="confidence", window=3)
    world = ConfidentWorld([says("7"), says("9"), says("7"), says("5")], sure=lambda _, __: 0.8)
    world.run(search, until=lambda: ended(world) == 3)
    assert not search.finished


def test_a_window_that_agrees_ends_the_vote() -> None:
    search = voting(n=16, width=3, stop="window", window=3)
    drive(search, [says("7"), says("9"), says("7"), says("8")])
    assert search.stop_reason == "agreed"
    assert [b.answer for b in search.branches()][:6] == ["7", "9", "7", "8", "8", "8"]
    assert {b.fate for b in search.branches()[6:]} == {"stopped"}


def test_samples_that_end_early_make_no_window() -> None:
    search = voting(n=16, width=16, stop="window", window=3)
    drive(search, [says("7")], [0, 3, 6, 1, 2, 4, 5])
    assert search.stop_reason == "agreed"
    answered = [i for i, b in enumerate(search.branches()) if b.answer is not None]
    assert answered == [0, 1, 2, 3, 6]


@pytest.mark.parametrize(("sure", "samples"), [(0.99, 1), (0.8, 3), (0.6, 8)])
def test_the_surer_the_samples_the_fewer_are_drawn(sure: float, samples: int) -> None:
    search = voting(n=16, width=1, stop="confidence", threshold=0.95, min_votes=1)
    ConfidentWorld([says("7")], sure=lambda _, __: sure).run(search)
    assert search.stop_reason == "confident"
    assert len(search.branches()) == samples


def test_sharpness_takes_confidence_away() -> None:
    def drawn(sharpness: float) -> int:
        search = voting(n=16, width=1, stop="confidence", sharpness=sharpness, min_votes=1)
        ConfidentWorld([says("7")], sure=lambda _, __: 0.9).run(search)
        return len(search.branches())

    assert drawn(0.1) < drawn(2) < drawn(6)


def test_an_engine_without_logprobs_gives_no_early_stop_but_the_exact_one() -> None:
    search = voting(n=5, width=1, stop="confidence", weight="confidence", min_votes=1)
    World([says("7")]).run(search)
    assert search.stop_reason == "decided"
    best = search.best()
    assert best is not None
    assert (best.answer, best.support) == ("7", 1.0)


def test_logprobs_are_asked_for_only_where_they_are_used() -> None:
    for params, asked in (({}, 0), ({"stop": "confidence"}, 1), ({"weight": "confidence"}, 1)):
        (call,) = voting(**params).ask(Room(4, 1000, 1000))
        assert isinstance(call, Generate)
        assert call.logprobs == asked


def test_the_surer_answer_wins_a_vote_weighed_by_confidence() -> None:
    search = voting(n=3, width=3, stop="none", weight="confidence", max_retries=0)
    scripts = [says("7", 6), says("7", 7), says("9", 8)]
    one_by_one(ConfidentWorld(scripts, sure=lambda script, _: (0.3, 0.3, 0.9)[script]), search, [0, 1, 2])
    best = search.best()
    assert best is not None
    assert best.answer == "9"
    assert best.support == pytest.approx(0.6)
    assert "60% of their weight" in search.branches()[2].reason


def scored(**params: Any) -> SelfConsistency:
    costs = Costs(score_tokens=10)
    return SelfConsistency(SelfConsistencyParams(**params), Ground.of(PROMPT, LIMITS, costs, 7))


def test_a_vote_weighed_by_scores_adds_them_up() -> None:
    search = scored(n=3, width=3, stop="none", weight="score")
    scripts = [says("7", 6, score=0.4), says("7", 7, score=0.3), says("9", 8, score=0.9)]
    one_by_one(World(scripts, costs=Costs(score_tokens=10)), search, [0, 1, 2])
    best = search.best()
    assert best is not None
    assert (best.answer, best.score) == ("9", 0.9)
    assert best.support == pytest.approx(0.9 / 1.6)


def test_each_sample_is_scored_as_it_ends_and_a_high_score_ends_the_vote() -> None:
    search = scored(n=16, width=1, stop="confidence", confidence_from="score", min_votes=1)
    world = World([says("7", score=0.97)], costs=Costs(score_tokens=10))
    world.run(search)
    assert search.stop_reason == "confident"
    assert [type(c) for c in world.asked] == [Generate, Score]


def test_low_scores_draw_more_samples() -> None:
    search = scored(n=16, width=1, stop="confidence", confidence_from="score", min_votes=1)
    scripts = [says("7", 4 + i, score=0.6) for i in range(8)]
    World(scripts, costs=Costs(score_tokens=10)).run(search)
    assert len(search.branches()) > 2


def test_both_logprobs_and_scores_make_a_sample_sure() -> None:
    def drawn(sure: float, score: float) -> int:
        search = scored(n=16, width=1, stop="confidence", confidence_from="both", min_votes=1)
        scripts = [says("7", 4 + i, score=score) for i in range(16)]
        world = ConfidentWorld(scripts, costs=Costs(score_tokens=10), sure=lambda _, __: sure)
        world.run(search)
        return len(search.branches())

    assert drawn(0.99, 0.99) == 1
    assert drawn(0.99, 0.5) > 1
    assert drawn(0.5, 0.99) > 1


def test_a_verifier_that_fails_never_passes_for_wrong() -> None:
    search = scored(n=4, width=4, stop="none", weight="score", max_retries=0)
    lost = [Script(says("7", 5 + i).pieces, score_fails=True) for i in range(3)]
    one_by_one(World([*lost, says("9", 9, score=0.9)], costs=Costs(score_tokens=10)), search, [0, 1, 2, 3])
    best = search.best()
    assert best is not None
    assert (best.answer, best.score) == ("7", None)


def test_an_answer_stands_before_its_score_has_come() -> None:
    search = scored(n=4, width=1, stop="confidence", confidence_from="score")
    world = World([says("7", score=0.9)], costs=Costs(score_tokens=10))
    world.run(search, until=lambda: ended(world) == 1)
    best = search.best()
    assert best is not None
    assert (best.answer, best.complete, best.score) == ("7", True, None)


@pytest.mark.parametrize("field", ["weight", "confidence_from"])
def test_scores_are_needed_just_where_they_are_used(field: str) -> None:
    needs = TECHNIQUES["self_consistency"].needs
    assert needs(SelfConsistencyParams()) == frozenset()
    assert needs(SelfConsistencyParams(confidence_from="score")) == frozenset()
    params: dict[str, Any] = {field: "score", "stop": "confidence"}
    assert needs(SelfConsistencyParams(**params)) == frozenset({"score"})


def running(world: World) -> int:
    return sum(isinstance(c, Generate) for c in world.in_flight.values())


def test_the_first_samples_run_before_all_others() -> None:
    search = voting(n=8, width=4, first=2, stop="none")
    world = World([says("7"), says("8"), says("9")])
    most = 0
    while ended(world) < 2:
        world.ask(search)
        world.ask(search)
        most = max(most, running(world))
        world.tell(search, world.next_event(search))
    assert most == 2
    assert len(search.branches()) == 2
    world.ask(search)
    assert running(world) == 4


def test_a_first_sample_that_failed_is_drawn_again_before_the_others() -> None:
    search = voting(n=8, width=4, first=1)
    world = World([Script(("a ",) * 5, fails_after=2), says("7")])
    world.run(search, until=lambda: len(search.branches()) == 2)
    world.ask(search)
    assert running(world) == 1


def test_the_first_samples_are_not_over_before_their_scores_have_come() -> None:
    search = scored(n=8, width=4, first=1, stop="confidence", confidence_from="score")
    world = World([says("7", score=0.6)], costs=Costs(score_tokens=10))
    world.run(search, until=lambda: ended(world) == 1)
    assert [type(c) for c in world.ask(search)] == [Score]
    assert world.ask(search) == []


def test_the_needed_pace_runs_no_more_than_would_end_the_vote_and_wastes_nothing_on_agreement() -> None:
    search = voting(n=16, width=16, pace="needed")
    world = World([says("7")], rng=random.Random(3))
    world.run(search)
    assert search.stop_reason == "confident"
    assert world.cancelled == []
    assert len(search.branches()) == 4


@pytest.mark.parametrize("stop", ["beta", "window", "confidence", "none"])
def test_the_needed_pace_ends_with_any_rule(stop: str) -> None:
    for seed in range(5):
        search = voting(n=12, width=5, pace="needed", stop=stop, weight="confidence")
        answers = [says(str(i % 3), 4 + i) for i in range(12)]
        ConfidentWorld(answers, rng=random.Random(seed)).run(search)
        assert search.finished
        assert search.stop_reason in ("all_done", "decided", "confident", "agreed")
