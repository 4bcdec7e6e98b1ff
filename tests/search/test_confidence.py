from __future__ import annotations

import math
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.confidence import MOST_GROUPS, MeanLogprob, TraceConfidence, percentile, token_confidences
from search.contract import Chunk

VALUES = st.lists(st.floats(0, 20), min_size=1, max_size=60)


def trace(values: list[float], window: int) -> TraceConfidence:
    out = TraceConfidence(window)
    for value in values:
        out.add(value)
    return out


def groups(values: list[float], window: int) -> list[float]:
    if len(values) < window:
        return [sum(values) / len(values)]
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(VALUES, st.integers(1, 20))
def test_the_running_measures_equal_those_of_the_whole_trace(values: list[float], window: int) -> None:
    made, whole = trace(values, window), groups(values, window)
    assert made.lowest == pytest.approx(min(whole), abs=1e-9)
    assert made.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    tail = values[-window:]
    assert made.tail == pytest.approx(sum(tail) / len(tail), abs=1e-9)
    least = sorted(whole)[: max(1, len(whole) // 10)]
    assert made.bottom(10) == pytest.approx(sum(least) / len(least), abs=1e-9)


def test_a_group_is_there_once_its_window_is_full() -> None:
    made = TraceConfidence(3)
    seen = []
    for value in (1.0, 2.0, 3.0, 4.0):
        made.add(value)
        seen.append(made.group)
    assert seen == [None, None, 2.0, 3.0]


def test_an_empty_trace_has_no_confidence() -> None:
    made = TraceConfidence(3)
    assert (made.mean, made.tail, made.lowest, made.bottom(10), made.group) == (0, 0, 0, 0, None)


def test_case_59_a_trace_of_ten_thousand_steps_takes_bounded_memory() -> None:
    """Also ten times as many tokens take no more than a constant amount."""
    rng = random.Random(0)
    made = TraceConfidence(256)
    for _ in range(20_000):
        made.add(rng.random())
    tracemalloc.start()
    for _ in range(100_000):
        made.add(rng.random())
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made._groups) <= MOST_GROUPS
    assert grown < 500_000
    assert made.count == 120_000


def test_a_thinned_out_trace_keeps_its_lowest_group_and_about_its_bottom() -> None:
    rng = random.Random(1)
    values = [5 + math.sin(i / 3000) + rng.random() for i in range(40_000)]
    made, whole = trace(values, 64), groups(values, 64)
    assert made.lowest == pytest.approx(min(whole), abs=1e-6)
    least = sorted(whole)[: len(whole) // 10]
    assert made.bottom(10) == pytest.approx(sum(least) / len(least), abs=0.01)


def test_top_means_are_surer_the_lower_and_a_drawn_token_the_likelier() -> None:
    tops = Chunk(1, (1, 2), "ab", (-0.1, -1.0), (-8.0, -2.0))
    assert list(token_confidences(tops)) == [8.0, 2.0]
    alone = Chunk(1, (1, 2), "ab", (-0.1, -1.0))
    assert list(token_confidences(alone)) == pytest.approx([math.exp(-0.1), math.exp(-1.0)])
    assert list(token_confidences(Chunk(1, (1,), "a"))) == []


def test_impossible_tokens_do_not_make_a_trace_infinite() -> None:
    values = list(token_confidences(Chunk(1, (1, 2), "", (), (-math.inf, -2.0))))
    assert all(math.isfinite(v) for v in values)


def test_the_mean_probability_is_geometric() -> None:
    mean = MeanLogprob()
    assert mean.probability is None
    mean.add((math.log(0.5),))
    mean.add((math.log(0.125),))
    assert mean.probability == pytest.approx(0.25)


@pytest.mark.parametrize(("value", "probability"), [(-math.inf, 0.0), (math.nan, None), (0.3, 1.0)])
def test_senseless_logprobs_give_no_senseless_probability(value: float, probability: float | None) -> None:
    mean = MeanLogprob()
    mean.add((value,))
    assert mean.probability == probability


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (100, 5.0), (50, 3.0), (10, 1.4), (25, 2.0), (90, 4.6)]
)
def test_percentiles_are_interpolated(percent: float, value: float) -> None:
    assert percentile([5, 1, 4, 2, 3], percent) == pytest.approx(value)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 10)
