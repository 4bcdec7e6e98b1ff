from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.extract import ThinkingMarkers, final_answer, visible_text

THINK = ThinkingMarkers()
INSIDE = ThinkingMarkers(starts_inside=True)
LONG = "A first line that is longer than a short answer.\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{ 7 }", "7"),
        (r"set \boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"stray } and { then \boxed{3}", "3"),
        ("**Answer:** 5.", "5"),
        ("**Answer**: (B)", "(B)"),
        ("Answer: **12**.", "12"),
        (LONG + "Final answer: Paris", "Paris"),
        (LONG + "### Final Answer:\n\n$x^2$\n", "$x^2$"),
        (LONG + "So the answer is 1.5.", "1.5"),
        (LONG + "The final answer is: 42", "42"),
        (LONG + "The final answer is $42$. I hope it is correct.", "$42$"),
        (LONG + "the answer is Dr. Who", "Dr. Who"),
        (LONG + "#### 1,234", "1,234"),
        (LONG + "#### twelve\n", "twelve"),
        ("42.", "42"),
        ("  yes\n", "yes"),
    ],
)
def test_each_form_is_recognised(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "A line that is longer than thirty-two characters",
        "two\nlines",
        "#### Step 2: simplify\nand so on, without an answer",
        r"an unclosed \boxed{12 has no answer",
        LONG + "I must check my answer: it seems fine so far",
        "unanswered: nothing to see in this long line of text",
    ],
)
def test_a_text_without_a_final_answer_has_none(text: str) -> None:
    assert final_answer(text) is None


def test_case_41_of_several_boxes_the_last_counts() -> None:
    assert final_answer(r"\boxed{1}, no: \boxed{2}") == "2"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 1\n\\boxed{2}", "2"),
        ("\\boxed{2}\nAnswer: 1", "1"),
        ("Answer: 1\n#### 3", "3"),
        ("#### 3\nThe answer is 4", "4"),
        ("#### Answer: 5", "5"),
        ("The final answer is \\boxed{42}.", "42"),
        (r"\boxed{\boxed{3}}", "3"),
    ],
)
def test_of_several_forms_the_one_that_starts_last_counts(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text", [r"\boxed{}", r"\boxed{1} then \boxed{ }", "Answer:", "**Answer:** **\n", "...."]
)
def test_case_45_an_empty_answer_is_none(text: str) -> None:
    assert final_answer(text) is None


def test_case_31_a_box_inside_thinking_is_no_answer() -> None:
    assert final_answer(r"<think>\boxed{1}</think> still going on, at some greater length", THINK) is None
    assert final_answer(r"<think>\boxed{1}", THINK) is None
    assert final_answer(r"\boxed{1}", INSIDE) is None


def test_case_31_the_answer_after_thinking_counts_not_the_one_inside() -> None:
    assert final_answer(r"<think>\boxed{1}</think>\boxed{2}", THINK) == "2"
    assert final_answer(r"\boxed{1}</think>\boxed{2}", INSIDE) == "2"
    assert final_answer(r"\boxed{2}<think>or \boxed{1}?</think>", THINK) == "2"


def test_a_first_closing_marker_ends_a_section_that_the_template_opened() -> None:
    assert final_answer(r"\boxed{1}</think>7", THINK) == "7"


def test_a_second_closing_marker_hides_nothing() -> None:
    assert final_answer(r"<think>a</think>\boxed{3}</think>", THINK) == "3"


def test_an_unclosed_section_hides_all_that_follows() -> None:
    assert visible_text("a<think>b</think>c<think>d", THINK) == "a\nc"


def test_a_model_without_thinking_may_write_the_markers() -> None:
    assert final_answer(r"<think>\boxed{1}</think>") == "1"


@pytest.mark.parametrize(("opening", "closing"), [("", "x"), ("x", ""), ("x", "x")])
def test_markers_that_cannot_be_told_apart_are_refused(opening: str, closing: str) -> None:
    with pytest.raises(ValueError, match="markers"):
        ThinkingMarkers(opening, closing)


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "{",
        "answer ",
        "Answer:\n",
        "\\boxed ",
        "#### \n",
        " \n",
        "<think>",
        "<think></think>",
        "*",
        "Answer: $",
    ],
)
def test_time_is_linear_in_the_text(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    began = time.perf_counter()
    final_answer(text, THINK)
    assert time.perf_counter() - began < 2


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(alphabet="\\boxed{}<think>/ Answer:1#\n.*$", max_size=200))
def test_any_text_gives_none_or_a_non_empty_answer(text: str) -> None:
    answer = final_answer(text, THINK)
    assert answer is None or answer.strip()
