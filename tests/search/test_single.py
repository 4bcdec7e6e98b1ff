from __future__ import annotations

import dataclasses

from search.contract import Candidate, Chunk, Costs, Generated, Room
from search.extract import ThinkingMarkers
from search.ground import Ground
from search.single import Single, SingleParams
from tests.search.drive import LIMITS, PROMPT, Script, World, says


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
