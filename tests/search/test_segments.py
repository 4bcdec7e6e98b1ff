"""In which pieces a path is written."""

from __future__ import annotations

import dataclasses
import random

import pytest

from search.beam import Beam, BeamParams
from search.contract import Costs
from search.extract import ThinkingMarkers
from search.ground import Ground, Phrase
from search.sample import ANSWER_RESERVE, SampleLimits
from search.segments import THINK_AGAIN, THINK_CLOSE, THINK_OPEN, Segment, Segments
from tests.search.drive import PROMPT, Script
from tests.search.think_world import MARKERS, THINK_PHRASES, ThinkWorld

LIMITS = SampleLimits(400, 1000, MARKERS, step_tokens=20)
CLOSE_TOKENS = len(THINK_PHRASES[THINK_CLOSE].token_ids)


def segments(steps: bool = False, tokens: int = 400, **changes: object) -> Segments:
    limits = dataclasses.replace(LIMITS, **changes)  # type: ignore[arg-type]
    return Segments(limits, THINK_PHRASES, tokens, steps=steps)


def test_a_path_without_tokens_left_has_no_next_piece() -> None:
    assert segments().next("x", 400, 0) is None


def test_without_thinking_a_sample_is_one_piece() -> None:
    assert segments(thinking=None).next("", 0, 0) == Segment(None, (), 400, False, True, False)


def test_thinking_leaves_the_reserve_for_the_answer_and_the_tokens_that_close_it() -> None:
    piece = segments().next("<think>", 1, 1)
    assert piece == Segment(None, ("</think>",), 399 - ANSWER_RESERVE - CLOSE_TOKENS, False, False, True)


def test_the_reserve_is_at_most_half_of_a_short_sample() -> None:
    piece = segments(tokens=40).next("<think>", 1, 1)
    assert piece is not None
    assert piece.max_tokens == 39 - 20 - CLOSE_TOKENS


def test_a_budget_bounds_thinking_by_what_was_thought_already() -> None:
    piece = segments(think_tokens=30).next("<think>hm ", 11, 11)
    assert piece is not None
    assert (piece.phrase, piece.max_tokens) == (None, 19)


def test_thinking_whose_budget_is_used_up_is_closed_and_answered() -> None:
    piece = segments(think_tokens=30).next("<think>hm ", 30, 30)
    assert piece == Segment(THINK_CLOSE, (), 370 - CLOSE_TOKENS, False, True, False)


def test_without_the_closing_phrase_thinking_goes_on() -> None:
    limits = dataclasses.replace(LIMITS, think_tokens=30)
    piece = Segments(limits, {}, 400).next("<think>hm ", 30, 30)
    assert piece == Segment(None, ("</think>",), 370, False, False, True)


def test_a_closing_phrase_that_does_not_close_is_refused() -> None:
    with pytest.raises(ValueError, match="think_close"):
        Segments(LIMITS, {THINK_CLOSE: Phrase((1,), "done")}, 400)


def test_what_is_written_outside_thinking_is_the_answer_and_constrained() -> None:
    assert segments().next("<think>hm </think>", 5, 5) == Segment(None, (), 395, False, True, False)
    assert segments(whole=True).next("<think>hm </think>", 5, 5) == Segment(None, (), 395, True, True, False)


def test_a_grammar_opens_thinking_for_a_model_that_thinks_and_does_not_hold_in_it() -> None:
    piece = segments(whole=True).next("", 0, 0)
    assert piece is not None
    assert (piece.phrase, piece.constrained, piece.whole, piece.thinking) == (THINK_OPEN, False, False, True)


def test_a_grammar_holds_from_the_first_token_where_thinking_cannot_be_opened() -> None:
    limits = dataclasses.replace(LIMITS, whole=True)
    phrases = {THINK_CLOSE: THINK_PHRASES[THINK_CLOSE]}
    assert Segments(limits, phrases, 400).next("", 0, 0) == Segment(None, (), 400, True, True, False)
    assert segments(whole=True, tokens=4).next("", 0, 0) == Segment(None, (), 4, True, True, False)


def test_a_template_that_opens_thinking_is_inside_from_the_start() -> None:
    markers = ThinkingMarkers(starts_inside=True)
    piece = segments(thinking=markers, whole=True).next("", 0, 0)
    assert piece is not None
    assert (piece.phrase, piece.constrained, piece.thinking) == (None, False, True)


def test_the_first_piece_is_watched_only_where_the_end_of_thinking_matters() -> None:
    assert Segments(LIMITS, {}, 400).next("", 0, 0) == Segment(None, (), 400, False, True, False)
    piece = segments().next("", 0, 0)
    assert piece is not None
    assert piece.until == ("</think>",)


def test_blank_text_does_not_use_up_the_sample_token_by_token() -> None:
    piece = segments(think_tokens=10).next("\n\n", 10, 10)
    assert piece == Segment(None, (), 390, False, True, False)


@pytest.mark.parametrize("matched", ["\n\n", None])
def test_a_step_does_not_end_within_thinking(matched: str | None) -> None:
    s = segments(steps=True)
    assert not s.ends_step("<think>hm \n\n", matched, 50)
    assert s.ends_step("<think>hm \n\n</think>", "</think>", 50)


@pytest.mark.parametrize("matched", ["\n\n", None])
def test_a_step_does_not_end_within_a_block_of_code(matched: str | None) -> None:
    s = segments(steps=True)
    code = "Code:\n```python\nx = 1\n\n"
    assert not s.ends_step(code, matched, 50)
    piece = s.next(code, 10, 0, step_tokens=10)
    assert piece is not None
    assert piece.until == ("```",)
    closed = code + "y = 2\n```"
    assert s.ends_step(closed, "```", 50), "the step is full"
    assert not s.ends_step(closed, "```", 12)
    assert s.ends_step(closed + "\n\n", "\n\n", 14)


def test_a_block_that_was_left_open_in_thinking_does_not_hold_the_answers_steps() -> None:
    s = segments(steps=True)
    text = "<think>```\nx\n</think>one\n\n"
    assert s.ends_step(text, "\n\n", 5)
    piece = s.next(text, 10, 5)
    assert piece is not None
    assert piece.until == ("\n\n",)


def test_a_step_after_thinking_that_was_closed_by_force_has_all_its_tokens() -> None:
    piece = segments(steps=True, think_tokens=30).next("<think>hm ", 30, 30, step_tokens=30)
    assert piece is not None
    assert (piece.phrase, piece.max_tokens) == (THINK_CLOSE, 20)


def test_a_first_step_without_thinking_is_no_longer_than_a_step() -> None:
    piece = segments(steps=True).next("", 0, 0)
    assert piece is not None
    assert piece.max_tokens == 20


@pytest.mark.parametrize(
    ("text", "thought", "continued", "again"),
    [
        ("<think>hm ", 5, 0, True),
        ("<think>hm ", 5, 2, False),
        ("hm ", 5, 0, False),
        ("<think>hm ", 29, 0, False),
        ("<think>hm ", 28, 0, True),
    ],
)
def test_thinking_goes_on_while_it_may_and_its_budget_lasts(
    text: str, thought: int, continued: int, again: bool
) -> None:
    s = segments(think_again=2, think_tokens=30)
    assert s.may_think_again(text, 40, thought, continued) is again


def test_thinking_does_not_go_on_without_the_phrase_for_it() -> None:
    limits = dataclasses.replace(LIMITS, think_again=2)
    phrases = {name: phrase for name, phrase in THINK_PHRASES.items() if name != THINK_AGAIN}
    assert not Segments(limits, phrases, 400).may_think_again("<think>hm ", 5, 5, 0)


def steps_of(world: ThinkWorld, limits: SampleLimits, tokens: int = 100_000) -> list[str]:
    """The texts of the steps of a beam of one path."""
    world.scripts, world.tokens = [Script(())], tokens
    search = Beam(BeamParams(width=1, expand=1), Ground.of(PROMPT, limits, Costs(), 7, THINK_PHRASES))
    world.run(search)
    return ["".join(search.tree[n].text for n in b.nodes) for b in search.branches()]


@pytest.mark.parametrize("slots_seed", range(5))
def test_the_steps_of_a_path_keep_thinking_and_code_whole(slots_seed: int) -> None:
    answer = ("one ", "\n\n", "two:\n", "```\n", "x = 1", "\n\n", "y = 2", "```", " ok", "\n\n", "\\boxed{7}")
    limits = dataclasses.replace(LIMITS, step_tokens=4)
    world = ThinkWorld([], thoughts=30, answer=answer, rng=random.Random(slots_seed))
    assert steps_of(world, limits) == [
        "<think>" + "hm " * 30 + "</think>",
        "one \n\n",
        "two:\n```\nx = 1\n\ny = 2```",
        " ok\n\n",
        "\\boxed{7}",
    ]


def test_case_29_a_path_of_steps_that_would_fill_the_context_in_thinking_is_closed_and_answered() -> None:
    limits = dataclasses.replace(LIMITS, context_tokens=len(PROMPT) + 60)
    texts = steps_of(ThinkWorld([], thoughts=1000), limits)
    assert texts[0].startswith("<think>" + "hm " * 27 + "\n</think>")
    assert "".join(texts).endswith("\\boxed{7}")
