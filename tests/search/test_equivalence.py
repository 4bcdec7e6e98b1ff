from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.equivalence import answer_key


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (r"\frac{1}{2}", "1/2"),
        (r"\dfrac12", "1/2"),
        (r"\tfrac1{2}", "1/2"),
        (r"-\frac{1}{2}", "-1/2"),
        (r"1\frac{1}{2}", "3/2"),
        ("1 1/2", "3/2"),
        (".5", "1/2"),
        ("0.50", "1/2"),
        ("2/4", "1/2"),
        ("5.", "5"),
        ("+5", "5"),
        ("-0", "0"),
        ("1,000", "1000"),
        ("1{,}000", "1000"),
        (r"1\,000", "1000"),
        ("1e3", "1000"),
        (r"1 \times 10^{3}", "1000"),
        ("2.5E-1", "1/4"),
        ("$5$", "5"),
        ("$$5$$", "5"),
        (r"\(5\)", "5"),
        (r"\[ 5 \]", "5"),
        ("**5**.", "5"),
        (r"\text{5}", "5"),
        (r"\boxed{5}", "5"),
        (r"\left5\right", "5"),
        (r"\$5.00", "5"),
        ("$5", "5"),
        (r"50\%", "50%"),
        ("50.0 %", "50%"),
    ],
)
def test_numbers_are_reduced_to_their_exact_value(answer: str, value: str) -> None:
    assert answer_key(answer) == value


def test_case_40_every_dash_is_a_minus_sign_and_the_sign_counts() -> None:
    assert len({answer_key(a) for a in ("-3", "\u22123", "\u20133", "\ufe633")}) == 1
    assert answer_key("-3") != answer_key("3")


def test_case_41_fraction_decimal_and_ratio_are_one_group() -> None:
    assert len({answer_key(a) for a in (r"\frac{1}{2}", "0.5", "1/2")}) == 1


def test_case_42_different_numbers_are_two_groups_however_alike_the_text_is() -> None:
    assert answer_key("42") != answer_key("24")
    same = "the same long reasoning " * 20
    assert answer_key(same + "42") != answer_key(same + "24")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Paris", "paris."),
        (r"\text{Paris}", "Paris"),
        ("New  York", "new york"),
        ("(A)", "A"),
        ("x + 1", "x+1"),
        (r"\left( 1,2 \right)", "(1, 2)"),
        ('"yes"', "Yes"),
    ],
)
def test_texts_that_differ_in_form_alone_are_one_group(one: str, other: str) -> None:
    assert answer_key(one) == answer_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1 2", "12"),
        ("1, 234", "1,234"),
        ("(1,2)", "[1,2]"),
        ("5!", "5"),
        ("0.33...", "0.33"),
        ("50%", "50"),
        ("50%", "0.5"),
        ("0.333", "1/3"),
        (r"\Delta", r"\delta"),
        ("x^2", "x2"),
        ("x\u00b2", "x2"),
        ("1/0", "0"),
        ("f'", "f"),
        ("2-3", "-1"),
    ],
)
def test_what_may_differ_in_meaning_is_kept_apart(one: str, other: str) -> None:
    assert answer_key(one) != answer_key(other)


@pytest.mark.parametrize("answer", ["", " ", "$$", ".", r"\text{}"])
def test_case_45_nothing_left_is_an_empty_key(answer: str) -> None:
    assert answer_key(answer) == ""


@pytest.mark.parametrize(
    "answer",
    [
        "1e999999999",
        "9" * 1999,
        "9^{9^{9^9}}",
        "(" * 2000,
        "\\text{" * 300 + "}" * 300,
        '"' * 2000,
        "1," * 900,
        "x" * 200_000,
    ],
)
def test_giant_and_pathological_answers_take_no_time(answer: str) -> None:
    began = time.perf_counter()
    answer_key(answer)
    assert time.perf_counter() - began < 0.5


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.fractions(max_denominator=10_000))
def test_every_way_to_write_a_fraction_is_one_group(value: Fraction) -> None:
    n, d = value.numerator, value.denominator
    ways = [f"{n}/{d}", f"\\frac{{{n}}}{{{d}}}", f"${n * 3}/{d * 3}$", f"\\({n} / {d}\\)."]
    assert {answer_key(w) for w in ways} == {str(value)}


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="01,./-{}\\frac text$(). %e^*\"'aA:", max_size=40))
def test_the_normal_form_of_a_normal_form_is_itself(answer: str) -> None:
    key = answer_key(answer)
    assert answer_key(key) == key
