from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.json_key import MAX_LENGTH, json_key

NUMBERS = st.integers(-(10**12), 10**12) | st.decimals(-(10**6), 10**6, places=4)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


def spelled(value: Any, rng: Any) -> str:
    """One of many ways to write a value in JSON: other orders, spaces and spellings of numbers."""
    space = rng.choice(["", " ", "\n", "\t "])
    if isinstance(value, dict):
        members = list(value.items())
        rng.shuffle(members)
        inside = f"{space},".join(f"{space}{json.dumps(k)}{space}:{spelled(v, rng)}" for k, v in members)
        return f"{{{inside}{space}}}"
    if isinstance(value, list):
        return f"[{space}" + f",{space}".join(spelled(v, rng) for v in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return number(Decimal(value), rng)
    return json.dumps(value)


def number(value: Decimal, rng: Any) -> str:
    plain = f"{value:f}"
    with_fraction = plain + ("0" if "." in plain else ".0")
    exponent = f"{value:e}"
    return str(rng.choice([plain, with_fraction, exponent, exponent.upper()]))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_the_key_does_not_depend_on_order_spaces_or_the_spelling_of_numbers(value: Any, rng: Any) -> None:
    one, other = json_key(spelled(value, rng)), json_key(spelled(value, rng))
    assert one is not None
    assert one == other


@settings(derandomize=True, max_examples=100, deadline=None)
@given(VALUES, VALUES, st.randoms(use_true_random=False))
def test_equal_keys_are_equal_values(one: Any, other: Any, rng: Any) -> None:
    same = json_key(spelled(one, rng)) == json_key(spelled(other, rng))
    assert same is alike(one, other)


def alike(one: Any, other: Any) -> bool:
    """Equality of JSON values; Python holds True == 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_a_key_is_json_and_its_own_key(value: Any, rng: Any) -> None:
    key = json_key(spelled(value, rng))
    assert key is not None
    json.loads(key)
    assert json_key(key) == key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [1.0]}', '{"b":[1e0],"a":1.000}'),
        ("0.10", "1e-1"),
        ("-0", "0.0"),
        ("100", "1E2"),
        ('"\\u0041"', '"A"'),
    ],
)
def test_values_that_are_the_same(one: str, other: str) -> None:
    assert json_key(one) == json_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "true"),
        ("0", "false"),
        ("1", '"1"'),
        ("null", '"null"'),
        ("[1,2]", "[2,1]"),
        ('"a "', '"a"'),
        ("0.1", "0.10000000000000001"),
        ("{}", "[]"),
        ("10", "1"),
        ("100", "10"),
    ],
)
def test_values_that_are_not(one: str, other: str) -> None:
    assert json_key(one) != json_key(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nan",
        "NaN",
        "Infinity",
        "1 2",
        '{"a":1,"a":2}',
        '[{"a":1,"a":1}]',
        "1e999999999",
        "```json\n{}\n```",
        "[" * 100_000,
        '"' + "a" * MAX_LENGTH + '"',
    ],
)
def test_what_is_no_json_value_or_too_much_of_one_has_no_key(text: str) -> None:
    assert json_key(text) is None
