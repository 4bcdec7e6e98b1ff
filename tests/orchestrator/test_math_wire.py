from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.verifiers.math_wire import MOST_BYTES, Lines, WireError, pack, unpack

messages = st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers() | st.none(), max_size=4)


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 300), max_size=6))
def test_messages_arrive_whole_however_their_bytes_are_cut(
    sent: list[dict[str, Any]], cuts: list[int]
) -> None:
    data = b"".join(map(pack, sent))
    bounds = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    lines, received = Lines(), []
    for start, end in pairwise(bounds):
        received += lines.feed(data[start:end])
    assert received == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        assert all(isinstance(message, dict) for message in Lines().feed(data))
    except WireError as refused:
        assert str(refused)


def test_a_line_has_a_bound_in_both_directions() -> None:
    with pytest.raises(WireError, match="too long"):
        pack({"first": "x" * MOST_BYTES})
    with pytest.raises(WireError, match="too long"):
        Lines().feed(b"x" * (MOST_BYTES + 1))
    with pytest.raises(WireError, match="no JSON object"):
        unpack(json.dumps([1]).encode())
