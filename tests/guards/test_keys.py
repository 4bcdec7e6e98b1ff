from __future__ import annotations

import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guards import keys


def test_a_new_key_parses_and_matches_only_its_own_digest() -> None:
    key, other = keys.new_key(), keys.new_key()
    assert keys.parse(key.reveal()) == key
    assert keys.matches(key, keys.digest(key))
    assert not keys.matches(key, keys.digest(other))
    assert not keys.matches(key, None)
    assert len(key.secret) * 6 >= 192


def test_the_secret_shows_in_no_repr() -> None:
    key = keys.new_key()
    assert key.secret not in f"{key!r} {key}"
    assert key.secret not in keys.digest(key)


@given(st.text(max_size=200))
def test_other_text_is_no_key(raw: str) -> None:
    assert keys.parse(raw) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw + "\n",
        lambda raw: " " + raw,
        lambda raw: raw[:-1],
        lambda raw: raw + "A" * 10**6,
        lambda raw: raw.upper(),
        lambda raw: raw.replace("pnd_", "pnd-"),
        lambda raw: raw[:-1] + "ä",
        lambda raw: raw[:-1] + "\0",
    ],
)
def test_a_spoilt_key_is_no_key(spoil: Any) -> None:
    assert keys.parse(spoil(keys.new_key().reveal())) is None


def test_known_and_unknown_ids_are_both_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = hmac.compare_digest

    def spy(a: str, b: str) -> bool:
        compared.append(len(b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    key = keys.new_key()
    for stored in (keys.digest(key), keys.digest(keys.new_key()), None):
        keys.matches(key, stored)
    assert compared == [64, 64, 64]
