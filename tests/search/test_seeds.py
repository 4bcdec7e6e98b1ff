from __future__ import annotations

from search.seeds import derive_seed


def test_seeds_are_the_same_in_every_process_and_version() -> None:
    assert [derive_seed(0, 0, 0), derive_seed(7, 3, 1), derive_seed(-1, 0, 0)] == [
        303972234,
        921782134,
        1690564962,
    ]


def test_every_sample_and_segment_has_a_seed_of_its_own() -> None:
    seeds = {derive_seed(1, sample, segment) for sample in range(100) for segment in range(20)}
    assert len(seeds) == 2000


def test_seeds_fit_in_31_bits() -> None:
    assert all(0 <= derive_seed(2**70, i, 0) < 2**31 for i in range(1000))
