"""What is read as mathematics, and which answers are the same: in this process, without limits."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.verifiers.math_compare import Comparison
from orchestrator.verifiers.math_reading import read
from orchestrator.verifiers.math_tokens import Unreadable

MATRIX = r"\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}"


def same(first: str, second: str, *, any_order: bool = False) -> bool | None:
    forth = Comparison(any_order=any_order).same(read(first), read(second))
    back = Comparison(any_order=any_order).same(read(second), read(first))
    assert forth is back, "the verdict must not depend on the direction"
    return forth


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\frac{\sqrt{2}}{2}", r"1/\sqrt{2}"),
        ("sqrt(2)/2", r"1/\sqrt 2"),
        ("x^2-1", "(x-1)(x+1)"),
        ("x**2 - 1", r"$(x-1) \cdot (x+1)$"),
        ("x(x+1)", "x^2+x"),
        ("n(n+1)/2", r"\frac{n^2+n}{2}"),
        (r"\frac12x", "0.5x"),
        ("2xy", "2yx"),
        ("2^x", "4^{x/2}"),
        (r"0.\overline{3}", "1/3"),
        (r"-1.2\overline{34}", "-611/495"),
        (r"\{1, 2\}", "{2, 1}"),
        (r"\{1, 1, 2\}", r"\{1, 2\}"),
        ("(0.5, 2)", r"\left(\frac{1}{2}, 2\right)"),
        (MATRIX, r"\begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}"),
        (r"\pm 3", r"\{-3, 3\}"),
        (r"\frac{-1\pm\sqrt5}{2}", r"\{\frac{\sqrt5-1}{2}, -\frac{1+\sqrt 5}{2}\}"),
        ("x = 5", "5"),
        ("5 = x", "x=5"),
        (r"x=\pm 2", "x=2, x=-2"),
        ("x=1, y=2", "y=2, x=1"),
        ("f(x)=2x", "2x"),
        ("y = 2x + 1", "2y = 4x + 2"),
        ("(x-1)^2 = 0", "x = 1"),
        ("x<3", "3 > x"),
        ("x < 3", r"(-\infty, 3)"),
        ("1<x<3", "(1,3)"),
        (r"(0,1)\cup[1,2)", "(0,2)"),
        (r"\mathbb{R}\setminus\{0\}", r"x \ne 0"),
        (r"\mathbb{R}", r"(-\infty, \infty)"),
        (r"\sin^2 x+\cos^2 x", "1"),
        (r"e^{i\pi}", "-1"),
        ("(1+i)(1-i)", "2"),
        (r"\log_2 8", "3"),
        (r"\tan^{-1}(1)", r"\frac{\pi}{4}"),
        (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"),
        ("\u03c0/2", r"\frac{\pi}{2}"),
        ("90\u00b0", "90 degrees"),
        ("5 km", r"5\text{ km}"),
        ("1,000x", "1000x"),
        (r"\lambda^2", r"\lambda\lambda"),
    ],
)
def test_the_same_in_another_form_is_the_same(first: str, second: str) -> None:
    assert same(first, second) is True


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.333", "1/3"),
        ("0.333x", "x/3"),
        ("3.14159265358979", r"\pi"),
        (r"\sqrt{2}", r"\sqrt{2}+10^{-30}"),
        (r"\frac{1}{3}", "0.33333333333333333333"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "(1,2,3)"),
        ("[1,2)", "(1,2)"),
        (r"\{1,2\}", r"\{1,3\}"),
        ("5%", "0.05"),
        ("5%", "5"),
        ("5 km", "5"),
        ("5 km", "6 km"),
        ("90\u00b0", "90"),
        ("x=5", "y=5"),
        ("x=5", "x=6"),
        ("x=1, y=2", "x=2, y=1"),
        ("x=1, y=2", "2, 1"),
        ("x<3", r"x \le 3"),
        ("x<3", "y<3"),
        ("x<3", "x=3"),
        ("y=2x+1", "y=2x+2"),
        ("x^2+y^2=1", "x^2+y^2=2"),
        (r"\infty", r"-\infty"),
        (r"\Delta", r"\delta"),
        ("x_1", "x_2"),
        ("a+b", "a-b"),
        ("5", "x<3"),
        ("5", "(5,6)"),
        ("1, 2", "1, 3"),
    ],
)
def test_what_differs_is_different_however_near_it_is(first: str, second: str) -> None:
    assert same(first, second) is False


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt{x^2}", "x"),
        ("|x|", "x"),
        ("5 km", "5000 m"),
        ("5 hours", "300 min"),
        ("[1,2]", "(1,2)"),
        (r"\{5\}", "5"),
        ("1,1", "1"),
        ("x=1, y=2", "1, 2"),
        ("x=1, y=2", "(1, 2)"),
        ("x=1, y=2", r"x=\{1, 2\}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
    ],
)
def test_what_depends_on_the_question_is_not_decided(first: str, second: str) -> None:
    assert same(first, second) is None


def test_another_order_of_a_list_without_brackets_is_undecided_in_a_vote_and_right_in_a_grade() -> None:
    assert same("1, 2", "2, 1") is None
    assert same("1, 2", "2, 1", any_order=True) is True
    assert same("(1, 2)", "(2, 1)", any_order=True) is False


@pytest.mark.parametrize(
    "text",
    [
        "cat",
        "no",
        "the answer is 5",
        "5 apples and 3 pears",
        "5 )",
        "(1,2}",
        "",
        "1011_2",
        "1 2",
        "007x",
        "1/2x",
        r"\frac{1}{2}/x y",
        r"2x^2^3",
        r"3\frac{1}{2}x",
        "x2",
        r"\sin x/2",
        "f(x+1)",
        "x != 3",
        "3!!",
        "1:2",
        "f'",
        r"x \approx 3.14",
        r"1, 2, \ldots",
        r"\foo{3}",
        "a=b=c",
        r"\sqrt12",
        "|x",
        "x=1, 2, y=3",
        "(" * 40 + "x" + ")" * 40,
        ",".join(["x"] * 65),
    ],
)
def test_what_has_no_meaning_or_more_than_one_is_refused(text: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(text)
    assert len(text) < 4 or text not in str(refused.value), "the reason does not quote the answer"


@pytest.mark.parametrize("text", ["1/0", r"\frac{x}{0}", r"\log 0", r"\infty-\infty"])
def test_what_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="no value"):
        same(text, "x")


@pytest.mark.parametrize(
    "text",
    [
        "{" * 1000,
        "{a," * 333,
        "1," * 500,
        r"\frac" * 200,
        "|" * 1000,
        "(1," * 333,
        "9" * 1000 + "x",
        "-" * 999,
    ],
)
def test_reading_takes_a_moment_at_the_most(text: str) -> None:
    began = time.process_time()
    with pytest.raises(Unreadable):
        read(text + "?!")
    assert time.process_time() - began < 1


@given(st.text(st.sampled_from("xy12 .,+-*/^=<>(){}[]|!_\\&%\u221a\u00d7") | st.characters(), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except Unreadable as refused:
        assert str(refused)


# Formulas as LaTeX, with their value at a point as an exact number.
Node = tuple[str, Any]
leaves: st.SearchStrategy[Node] = st.sampled_from(
    [("x", lambda x, y: x), ("y", lambda x, y: y), ("2", lambda x, y: Fraction(2)),
     ("0.5", lambda x, y: Fraction(1, 2)), (r"\frac{1}{3}", lambda x, y: Fraction(1, 3))]
)  # fmt: skip


def _nodes(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def joined(a: Node, b: Node, sign: str) -> Node:
        f, g = a[1], b[1]
        value = {
            "+": lambda x, y: f(x, y) + g(x, y),
            "-": lambda x, y: f(x, y) - g(x, y),
            "": lambda x, y: f(x, y) * g(x, y),
        }[sign]
        return f"({a[0]}){sign}({b[0]})", value

    return st.builds(joined, inner, inner, st.sampled_from(["+", "-", ""]))


formulas = st.recursive(leaves, _nodes, max_leaves=4)
POINTS = [
    (Fraction(3, 7), Fraction(-5, 11)),
    (Fraction(13, 3), Fraction(17, 19)),
    (Fraction(-2), Fraction(5)),
]


@settings(max_examples=6, deadline=None)
@given(formulas, formulas)
def test_two_polynomials_are_the_same_exactly_if_they_have_the_same_values(first: Node, second: Node) -> None:
    # Of degree 4 at the most, with such coefficients, they would have to be made to agree at these points.
    agree = all(first[1](*point) == second[1](*point) for point in POINTS)
    assert same(first[0], second[0]) is agree


@settings(max_examples=6, deadline=None)
@given(formulas, st.integers(1, 9))
def test_a_formula_written_otherwise_is_the_same_and_with_something_added_is_not(node: Node, n: int) -> None:
    text = node[0]
    assert same(text, f"({text}+{n})-{n}") is True
    assert same(text, f"{text}+{n}") is False
    assert same(f"z={text}", text) is True
    assert same(f"({text}, {n})", f"({text}, {n}.0)") is True
