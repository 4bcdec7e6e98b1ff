from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engines.detokenize import IncrementalDetokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class FallbackTokenizer:
    """Characters of the Latin alphabet, and all others as bytes, as SentencePiece falls back to them."""

    def __init__(self) -> None:
        pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *"abc xyz"]
        self.tokenizer = Tokenizer(
            models.BPE(
                vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True, unk_token="<0x00>"
            )
        )
        self.tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        self.continuation_ids = (0x80, 0xA0)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special))


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
        self.continuation_ids = (vocabulary["\u0122"], vocabulary["\u0142"])

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special))


TOKENIZER = ByteTokenizer()
FALLBACK = FallbackTokenizer()
both = pytest.mark.parametrize("tokenizer", [TOKENIZER, FALLBACK], ids=["bytes", "fallback"])
texts = st.text(
    st.characters(blacklist_categories=["Cs"])
    | st.sampled_from("aé€\u0800\ud7ff\uffff\U00010000\U0010ffff😀" + REPLACEMENT),
    max_size=40,
)
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


@both
@given(texts, st.characters(min_codepoint=0x80, blacklist_categories=["Cs"]), st.integers(1, 3))
def test_an_incomplete_character_at_the_end_is_left_out_and_given_when_its_rest_comes(
    tokenizer: ByteTokenizer | FallbackTokenizer, text: str, last: str, missing: int
) -> None:
    cut = min(missing, len(last.encode()) - 1)
    ids = tokenizer.encode(text + last)
    parent = IncrementalDetokenizer(tokenizer)
    assert "".join(run(parent, [[token] for token in ids[:-cut]])) == text
    for child in (parent, parent.copy(), IncrementalDetokenizer(tokenizer, ids[:-cut])):
        assert "".join(run(child, [[token] for token in [*ids[-cut:], *tokenizer.encode("a")]])) == last + "a"


def test_a_token_of_text_and_an_incomplete_character_gives_each_once() -> None:
    class Merged:
        continuation_ids = (0x80, 0xA0)

        def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
            pieces = (b"a\xe2" if i == 256 else bytes([i]) for i in ids)
            return b"".join(pieces).decode("utf-8", "replace")

    parent = IncrementalDetokenizer(Merged())
    assert parent.push([256]) == ""
    assert parent.flush() == "a"
    for child in (parent, IncrementalDetokenizer(Merged(), [256])):
        assert child.push([0x82, 0xAC, 0x62]) == "€b"


@both
@given(texts, st.lists(st.integers(0, 200), max_size=5), cuts)
def test_slices_continued_by_copies_add_up_to_the_unsliced_text(
    tokenizer: ByteTokenizer | FallbackTokenizer, text: str, borders: list[int], at: list[int]
) -> None:
    ids = tokenizer.encode(text)
    detokenizer = IncrementalDetokenizer(tokenizer)
    out = ""
    for part in pieces(ids, borders):
        detokenizer = detokenizer.copy()
        out += "".join(detokenizer.push(chunk) for chunk in pieces(part, at))
    assert out + detokenizer.flush() == text


@both
@given(
    st.text("ab€😀" + REPLACEMENT, max_size=25),
    st.lists(st.text("ab€😀", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 200), max_size=5),
    cuts,
)
def test_a_stop_string_across_slices_is_found_where_it_is_in_the_unsliced_text(
    tokenizer: ByteTokenizer | FallbackTokenizer,
    text: str,
    stops: list[str],
    borders: list[int],
    at: list[int],
) -> None:
    ids = tokenizer.encode(text)
    whole = IncrementalDetokenizer(tokenizer, stop=stops)
    expected = "".join(run(whole, [[token] for token in ids]))
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stops)
    out = ""
    for part in pieces(ids, borders):
        # A token at a time, as which of two stop strings is met first depends on what is seen together.
        chunks = pieces(part, at) if len(stops) == 1 else [[token] for token in part]
        detokenizer = detokenizer.copy()
        out += "".join(detokenizer.push(chunk) for chunk in chunks)
    out += detokenizer.flush()
    assert (out, detokenizer.matched_stop) == (expected, whole.matched_stop)
    assert (whole.matched_stop is None) == all(stop not in text for stop in stops)
    if len(stops) == 1:
        assert out == text.partition(stops[0])[0]


def test_bytes_that_are_no_character_do_not_hold_text_back_for_ever() -> None:
    lonely = TOKENIZER.encode("€")[1]
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    text = detokenizer.push([lonely] * 40 + TOKENIZER.encode("after"))
    assert text.endswith("after")


@both
@pytest.mark.parametrize(
    "text", [2 * REPLACEMENT + "€", 9 * REPLACEMENT + "a", REPLACEMENT + "😀" + REPLACEMENT]
)
def test_replacement_characters_of_the_text_itself_are_given_at_once(
    tokenizer: ByteTokenizer | FallbackTokenizer, text: str
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.push([token]) for token in tokenizer.encode(text)) == text


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
