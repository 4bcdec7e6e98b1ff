from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from search.contract import Candidate, Chunk, Costs, Generate, Generated, Room
from search.extract import ThinkingMarkers
from search.ground import Ground
from search.sample import SampleLimits
from search.self_consistency import SelfConsistency, SelfConsistencyParams
from search.single import Single, SingleParams
from tests.search.drive import LIMITS, PROMPT, Script, World, says
from tests.search.think_world import MARKERS, THINK_PHRASES, ThinkWorld

THINK_LIMITS = SampleLimits(300, 1000, MARKERS)


def single(max_retries: int = 2) -> Single:
    return Single(SingleParams(max_retries), Ground.of(PROMPT, LIMITS, Costs(), 7))


def test_one_sample_is_drawn_and_its_answer_is_the_answer() -> None:
    search = single()
    World([says("1/2")]).run(search)
    node = search.branches()[0].nodes[-1]
    assert search.best() == Candidate(node, "1/2", "1/2", complete=True)
    assert search.stop_reason == "all_done"
    assert [b.fate for b in search.branches()] == ["chosen"]


def test_a_text_without_an_answer_is_still_complete() -> None:
    search = single()
    World([Script(("some prose ", "over more than one short line, ", "without a form"))]).run(search)
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (True, None)


def test_before_the_end_the_partial_text_is_the_best_and_has_no_answer() -> None:
    search = single()
    assert search.best() is None
    (call,) = search.ask(Room(1, 1000, 1000))
    search.tell(Chunk(call.id, (9,), "\\boxed{1}"))
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (False, None)


def test_case_31_a_box_inside_thinking_gives_no_answer() -> None:
    limits = dataclasses.replace(LIMITS, thinking=ThinkingMarkers())
    search = Single(SingleParams(), Ground.of(PROMPT, limits, Costs(), 7))
    World([Script(("<think>", "\\boxed{1}", "</think>", "\\boxed{2}"))]).run(search)
    best = search.best()
    assert best is not None
    assert best.answer == "2"
    search = Single(SingleParams(), Ground.of(PROMPT, limits, Costs(), 7))
    World([Script(("<think>", "\\boxed{1}"))]).run(search)
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (True, None)


def test_a_failed_sample_is_drawn_again() -> None:
    search = single()
    World([Script(("a ",), fails_after=1), says("1")]).run(search)
    assert [b.fate for b in search.branches()] == ["failed", "chosen"]
    search = single(max_retries=0)
    World([Script(("a ",), fails_after=1)]).run(search)
    assert search.stop_reason == "all_failed"
    assert search.best() is not None


def test_an_empty_completion_ends_without_an_answer() -> None:
    search = single()
    (call,) = search.ask(Room(1, 1000, 1000))
    search.tell(Chunk(call.id, (9,), ""))
    search.tell(Generated(call.id, "stop"))
    assert search.stop_reason == "no_answers"
    assert search.best() == Candidate(1, None, None, complete=True)


def thinking(
    world: ThinkWorld,
    limits: SampleLimits = THINK_LIMITS,
    params: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Single, str]:
    """A run in a world that thinks, and the text of the answer."""
    search = Single(SingleParams(**params), Ground.of(PROMPT, limits, Costs(), 7, THINK_PHRASES))
    world.run(search)
    best = search.best()
    assert best is not None
    return search, search.tree.path_text(best.node)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [1, 2, 7, 30])
def test_thinking_is_closed_at_its_budget_and_the_answer_written(budget: int, seed: int) -> None:
    world = ThinkWorld([], thoughts=1000, rng=random.Random(seed), squeeze=True)
    search, text = thinking(world, params={"think_tokens": budget})
    assert text == "<think>" + "hm " * (budget - 1) + "\n</think>so \\boxed{7}"
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (True, "7")
    assert search.tree.given_tokens == 2


def test_thinking_that_ends_within_its_budget_is_left_alone() -> None:
    search, text = thinking(ThinkWorld([]), params={"think_tokens": 30})
    assert text == "<think>" + "hm " * 5 + "</think>so \\boxed{7}"
    assert search.tree.given_tokens == 0


@pytest.mark.parametrize("limits", [{"max_new_tokens": 60}, {"context_tokens": len(PROMPT) + 60}])
def test_case_29_thinking_that_would_fill_the_sample_or_the_context_is_closed_and_answered(
    limits: dict[str, int],
) -> None:
    world = ThinkWorld([], thoughts=1000)
    search, text = thinking(world, dataclasses.replace(THINK_LIMITS, **limits))  # type: ignore[arg-type]
    assert text == "<think>" + "hm " * 27 + "\n</think>so \\boxed{7}"
    best = search.best()
    assert best is not None
    assert best.answer == "7"


@pytest.mark.parametrize("again", [1, 3])
def test_thinking_is_made_to_go_on_and_its_end_taken_back(again: int) -> None:
    search, text = thinking(ThinkWorld([], thoughts=2), params={"think_again": again})
    assert text == "<think>hm hm " + "Wait hm hm " * again + "</think>so \\boxed{7}"
    assert search.tree.given_tokens == again
    (branch,) = search.branches()
    assert branch.tokens == search.tree.generated_tokens == 1 + 3 * (again + 1) + 2


def test_thinking_goes_on_no_longer_than_its_budget() -> None:
    _, text = thinking(ThinkWorld([], thoughts=2), params={"think_again": 9, "think_tokens": 9})
    # Of nine tokens the mark and two thoughts are three, and each continuation is three more.
    assert text == "<think>hm hm Wait hm hm Wait hm hm \n</think>so \\boxed{7}"


def test_an_end_of_thinking_within_a_token_cannot_be_taken_back_and_stands() -> None:
    _, text = thinking(ThinkWorld([], thoughts=2, joined=True), params={"think_again": 2})
    assert text == "<think>hm hm </think>so \\boxed{7}"


@pytest.mark.parametrize("params", [{}, {"think_tokens": 2}, {"think_again": 2}])
def test_a_model_that_does_not_think_is_not_harmed(params: dict[str, int]) -> None:
    answer = (*["word "] * 80, "\\boxed{7}")
    search, text = thinking(ThinkWorld([], opens=False, answer=answer), params=params)
    assert text == "".join(answer)
    assert search.tree.given_tokens == 0
    best = search.best()
    assert best is not None
    assert best.answer == "7"


def test_case_31_a_box_in_thinking_that_is_closed_by_force_gives_no_answer() -> None:
    world = ThinkWorld(
        [], thoughts=1000, answer=("so it is ", "not clear what to say, ", "or to whom of all")
    )
    original = world.piece
    world.piece = lambda text: "\\boxed{1}" if text == "<think>hm " else original(text)  # type: ignore[method-assign]
    search, text = thinking(world, params={"think_tokens": 20})
    assert "\\boxed{1}" in text
    best = search.best()
    assert best is not None
    assert (best.complete, best.answer) == (True, None)


@pytest.mark.parametrize("starts_inside", [False, True])
@pytest.mark.parametrize("opens", [False, True])
def test_a_grammar_holds_for_the_answer_alone_which_is_one_call(opens: bool, starts_inside: bool) -> None:
    markers = dataclasses.replace(MARKERS, starts_inside=starts_inside)
    limits = dataclasses.replace(THINK_LIMITS, whole=True, thinking=markers)
    world = ThinkWorld([], opens=opens, markers=markers, thoughts=1000)
    search, text = thinking(world, limits, params={"think_tokens": 9})
    thought, answer = (c for c in world.asked if isinstance(c, Generate))
    assert (thought.constrained, answer.constrained) == (False, True)
    assert search.tree.path_text(answer.node, answer.parent) == "so \\boxed{7}"
    assert answer.max_new_tokens == limits.max_new_tokens - 9 - 2
    assert text.count("<think>") == (not starts_inside)


def test_answers_in_one_piece_are_begun_only_with_room_to_end_them() -> None:
    limits = dataclasses.replace(THINK_LIMITS, whole=True, max_new_tokens=100)
    params = SelfConsistencyParams(n=4, width=4, stop="none")
    search = SelfConsistency(params, Ground.of(PROMPT, limits, Costs(), 7, THINK_PHRASES))
    # All four could think at once; none of them could answer then.
    ThinkWorld([], thoughts=1000, tokens=240).run(search)
    assert [b.answer for b in search.branches()].count("7") >= 2


def test_a_sample_that_was_lost_while_it_thought_is_drawn_again() -> None:
    search, text = thinking(ThinkWorld([], thoughts=2, loses=2), params={"think_tokens": 6, "think_again": 1})
    assert text == "<think>hm hm Wait hm hm \n</think>so \\boxed{7}"
    assert [b.fate for b in search.branches()] == ["failed", "failed", "chosen"]


@pytest.mark.parametrize("kv", [12, 20, 40])
def test_thinking_ends_in_a_tight_room_too(kv: int) -> None:
    world = ThinkWorld([], thoughts=1000, kv_tokens=len(PROMPT) + kv, squeeze=True, releases=0.3)
    search, text = thinking(world, params={"think_tokens": 6})
    assert text.endswith("\n</think>so \\boxed{7}")
    assert search.finished


@pytest.mark.parametrize(
    ("params", "phrase"),
    [({"think_tokens": 5}, "think_close"), ({"think_again": 1}, "think_again")],
)
def test_a_budget_is_refused_where_thinking_has_no_marks_or_phrases(
    params: dict[str, int], phrase: str
) -> None:
    (name,) = params
    with pytest.raises(ValueError, match=f"{name} needs a model that marks its thinking"):
        Single(SingleParams(**params), Ground.of(PROMPT, LIMITS, Costs(), 7, THINK_PHRASES))
    with pytest.raises(ValueError, match=f"{name} needs the phrase '{phrase}'"):
        Single(SingleParams(**params), Ground.of(PROMPT, THINK_LIMITS, Costs(), 7))


@pytest.mark.parametrize("params", [{"think_tokens": 0}, {"think_again": -1}, {"think_again": 17}])
def test_a_bad_budget_is_refused_naming_the_legal_values(params: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(params))} must be a whole number in"):
        SingleParams(**params)
