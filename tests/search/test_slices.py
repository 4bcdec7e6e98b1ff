from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from search.slices import MIN_SLICE, Want, divide, fit_whole

WANTS = st.lists(st.builds(Want, st.integers(1, 500), st.integers(0, 100)), max_size=8)


def test_with_enough_room_everybody_gets_all_the_rest() -> None:
    assert divide([Want(100), Want(50)], 1000, 1000, 0) == [100, 50]


def test_whole_samples_are_served_as_far_as_they_fit() -> None:
    assert fit_whole([Want(100), Want(50)], 150, 150, 0) == [100, 50]
    assert fit_whole([Want(100), Want(50)], 149, 150, 0) == [100]
    assert fit_whole([Want(100), Want(50)], 150, 149, 0) == [100]
    assert fit_whole([Want(100), Want(50)], 169, 1000, 10) == [100]
    assert fit_whole([Want(100, wake=7), Want(50)], 1000, 156, 0) == [100]
    assert fit_whole([Want(100), Want(5)], 99, 1000, 0) == []


def test_half_of_a_short_room_is_shared_and_half_goes_to_the_first() -> None:
    assert divide([Want(500), Want(500)], 200, 1000, 0) == [150, 50]
    assert divide([Want(120), Want(500), Want(500)], 300, 1000, 0) == [120, 130, 50]


def test_a_short_rest_leaves_its_part_to_the_others() -> None:
    assert divide([Want(500), Want(20), Want(500)], 240, 1000, 0) == [170, 20, 50]


def test_room_for_fewer_least_slices_serves_the_first_ones() -> None:
    room = 4 * MIN_SLICE + 10
    assert divide([Want(500)] * 4, room, 1000, 0) == [room - MIN_SLICE - 2, MIN_SLICE + 2]
    assert divide([Want(500)] * 4, 3 * MIN_SLICE, 1000, 0) == [3 * MIN_SLICE]


def test_a_rest_below_the_least_slice_is_served_whole() -> None:
    assert divide([Want(5)], 5, 5, 0) == [5]
    assert divide([Want(5)], 4, 5, 0) == []


def test_the_reserve_is_kept_back_for_each_that_runs() -> None:
    assert divide([Want(500)] * 2, 200, 1000, 30) == [105, 35]


def test_waking_counts_against_kv_and_not_against_tokens() -> None:
    assert divide([Want(500, wake=60)], 1000, 100, 0) == [40]
    assert divide([Want(500, wake=80)], 1000, 100, 0) == []


@settings(derandomize=True, max_examples=400, deadline=None)
@given(WANTS, st.integers(-50, 2000), st.integers(-50, 2000), st.integers(0, 60), st.integers(1, 40))
def test_slices_never_pass_the_room_nor_fall_below_the_least(
    wants: list[Want], tokens: int, kv: int, reserve: int, floor: int
) -> None:
    slices = divide(wants, tokens, kv, reserve, floor)
    served = wants[: len(slices)]
    assert sum(slices) + reserve * len(slices) <= max(0, tokens)
    assert sum(slices) + sum(w.wake for w in served) <= max(0, kv)
    assert all(min(floor, w.rest) <= s <= w.rest for w, s in zip(served, slices, strict=True))
