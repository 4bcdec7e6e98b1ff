from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engines.detokenize import IncrementalDetokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ByteTokenizer:
    """One token per byte, and one special token, `<end>`."""

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {character: number for number, character in enumerate(alphabet)}
        self.tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.add_special_tokens(["<end>"])
        self.end = len(alphabet)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special))


TOKENIZER = ByteTokenizer()
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters=REPLACEMENT), max_size=40)
cuts = st.lists(st.integers(0, 200), max_size=20)


def pieces(ids: list[int], at: list[int]) -> list[list[int]]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in at), len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


def run(detokenizer: IncrementalDetokenizer, chunks: list[list[int]]) -> list[str]:
    return [*[detokenizer.push(chunk) for chunk in chunks], detokenizer.flush()]


@given(texts, cuts)
def test_deltas_add_up_to_the_text_however_the_tokens_are_cut(text: str, at: list[int]) -> None:
    deltas = run(IncrementalDetokenizer(TOKENIZER), pieces(TOKENIZER.encode(text), at))
    assert "".join(deltas) == text


@given(texts, st.integers(1, 3))
def test_a_split_character_never_shows_as_a_replacement(text: str, missing: int) -> None:
    ids = TOKENIZER.encode(text + "€")[:-1]
    deltas = run(IncrementalDetokenizer(TOKENIZER), [[token] for token in ids])
    assert "".join(deltas) == text


def test_bytes_that_are_no_character_do_not_hold_text_back_for_ever() -> None:
    lonely = TOKENIZER.encode("€")[1]
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    text = detokenizer.push([lonely] * 40 + TOKENIZER.encode("after"))
    assert text.endswith("after")


def test_special_tokens_add_no_text() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    ids = [*TOKENIZER.encode("a"), TOKENIZER.end, *TOKENIZER.encode("b"), TOKENIZER.end]
    assert "".join(run(detokenizer, [[token] for token in ids])) == "ab"


@given(texts, cuts, st.lists(st.text("ab€\n", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string_however_the_tokens_are_cut(
    text: str, at: list[int], stops: list[str]
) -> None:
    text = text + "ab" + text
    detokenizer = IncrementalDetokenizer(TOKENIZER, stop=stops)
    given_out = "".join(run(detokenizer, pieces(TOKENIZER.encode(text), at)))
    met = [text.find(stop) for stop in stops if stop in text]
    if not met:
        assert (given_out, detokenizer.matched_stop) == (text, None)
    else:
        assert given_out == text[: len(given_out)]
        assert all(stop not in given_out for stop in stops)
        assert detokenizer.matched_stop in stops


def test_a_possible_stop_string_waits_until_it_is_settled() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, stop=["</think>"])
    assert detokenizer.push(TOKENIZER.encode("so </th")) == "so "
    assert detokenizer.push(TOKENIZER.encode("e")) == "</the"
    assert detokenizer.push(TOKENIZER.encode(" end</think> more")) == " end"
    assert detokenizer.matched_stop == "</think>"
    assert detokenizer.push(TOKENIZER.encode("and more")) == ""
    assert detokenizer.flush() == ""


def test_a_copy_goes_on_from_the_same_place_without_touching_the_original() -> None:
    euro = TOKENIZER.encode("€")
    first = IncrementalDetokenizer(TOKENIZER)
    assert first.push(euro[:1]) == ""
    second = first.copy()
    assert second.push(euro[1:]) == "€"
    assert first.push(euro[1:]) == "€"


@pytest.mark.parametrize("length", [100, 400])
def test_the_work_per_token_does_not_grow_with_the_text(length: int) -> None:
    class Counting:
        longest = 0

        def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
            self.longest = max(self.longest, len(ids))
            return TOKENIZER.decode(ids, skip_special=skip_special)

    counting = Counting()
    detokenizer = IncrementalDetokenizer(counting)
    for token in TOKENIZER.encode("x" * length):
        detokenizer.push([token])
    assert counting.longest <= 16
