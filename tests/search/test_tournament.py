from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.bracket import Pair
from search.tournament import MAX_FINALISTS, Tournament, TournamentParams

Judge = Callable[[Pair], float | None]


def play(
    tournament: Tournament,
    judge: Judge,
    rng: random.Random | None = None,
    look: Callable[[], None] = lambda: None,
) -> list[Pair]:
    """Play to the end; results come back in the order asked, or in one that `rng` draws. All pairs asked."""
    asked: list[Pair] = []
    running: list[Pair] = []
    while not tournament.finished:
        new = tournament.ask(rng.randint(1, 4) if rng else 1)
        assert new or running, "nothing asked, nothing running, not finished"
        asked += new
        running += new
        pair = running.pop(rng.randrange(len(running)) if rng else 0)
        tournament.tell(pair, judge(pair))
        look()
    return asked


def by_strength(strengths: list[float]) -> Judge:
    return lambda pair: 0.9 if strengths[pair[0]] > strengths[pair[1]] else 0.1


@pytest.mark.parametrize("entrants", range(1, 18))
@pytest.mark.parametrize("finalists", [1, 2, 4, MAX_FINALISTS])
def test_the_strongest_wins_in_the_number_of_matches_that_is_promised(entrants: int, finalists: int) -> None:
    rng = random.Random(entrants)
    strengths = [rng.random() for _ in range(entrants)]
    tournament = Tournament(entrants, TournamentParams(finalists=finalists))
    asked = play(tournament, by_strength(strengths))
    k = min(finalists, entrants)
    assert len(asked) <= entrants - k + k * (k - 1) // 2
    assert len(set(asked)) == len(asked)
    assert tournament.leader() == max(range(entrants), key=strengths.__getitem__)
    assert not tournament.tie


def test_in_a_knockout_the_two_best_entrants_meet_last_and_the_first_has_the_bye() -> None:
    asked = play(Tournament(5, TournamentParams(finalists=1)), lambda _: 0.9)
    assert asked == [(3, 4), (0, 3), (1, 2), (0, 1)]


def test_matches_of_one_round_run_together_and_nothing_waits_for_a_whole_round() -> None:
    tournament = Tournament(8, TournamentParams(finalists=1))
    first = tournament.ask(100)
    assert len(first) == 4
    assert tournament.ask(100) == []
    half = [pair for pair in first if 0 in pair or 3 in pair]
    for pair in half:
        tournament.tell(pair, 0.8)
    assert tournament.ask(100) == [(0, 3)]


def test_at_any_moment_there_is_a_leader_and_one_who_lost_does_not_lead() -> None:
    strengths = [0.1, 0.5, 0.9, 0.3]
    tournament = Tournament(4, TournamentParams(finalists=1))
    assert tournament.leader() == 0
    assert tournament.tie
    tournament.tell(tournament.ask(1)[0], 0.2)
    assert tournament.leader() == 3
    play(tournament, by_strength(strengths))
    assert tournament.ranking()[0] == 2


def test_a_failed_match_is_asked_again_and_then_decides_nothing() -> None:
    tournament = Tournament(2, TournamentParams(max_retries=2))
    assert play(tournament, lambda _: None) == [(0, 1)] * 3
    assert tournament.leader() == 0
    assert tournament.tie


def test_a_knockout_goes_on_past_a_failed_match_and_says_that_the_order_decided() -> None:
    tournament = Tournament(4, TournamentParams(finalists=1, max_retries=0))
    play(tournament, lambda pair: None if pair == (0, 3) else 0.9)
    assert tournament.leader() == 0
    assert tournament.tie


@pytest.mark.parametrize("nonsense", [float("nan"), -0.1, 1.1, float("inf")])
def test_what_is_no_probability_counts_as_failed(nonsense: float) -> None:
    tournament = Tournament(2, TournamentParams(max_retries=0))
    play(tournament, lambda _: nonsense)
    assert tournament.tie
    assert tournament.finished


def test_preferences_in_a_circle_are_settled_by_their_margins() -> None:
    results = {(0, 1): 0.6, (1, 2): 0.9, (0, 2): 0.45}
    tournament = Tournament(3, TournamentParams(finalists=3))
    play(tournament, results.__getitem__)
    assert tournament.leader() == 1
    assert not tournament.tie


def test_a_final_ends_when_nobody_can_catch_up() -> None:
    tournament = Tournament(4, TournamentParams(finalists=4))
    asked = play(tournament, by_strength([4, 3, 2, 1]))
    assert len(asked) < 6
    assert tournament.ask(10) == []
    assert tournament.matches_left == 0


def test_the_bound_on_matches_holds_repeats_included() -> None:
    tournament = Tournament(16, TournamentParams(max_matches=5, max_retries=3))
    assert tournament.matches_left == 5
    assert len(play(tournament, lambda _: None)) == 5
    assert tournament.leader() == 0
    none = Tournament(3, TournamentParams(max_matches=0))
    assert none.finished
    assert none.leader() == 0


def test_a_result_that_nobody_waits_for_changes_nothing() -> None:
    tournament = Tournament(3, TournamentParams(finalists=3))
    tournament.tell((0, 1), 0.1)
    assert tournament.leader() == 0
    [pair] = tournament.ask(1)
    tournament.tell(pair, 0.9)
    tournament.tell(pair, 0.1)
    assert tournament.ranking()[-1] == pair[1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"finalists": 0}, "finalists"),
        ({"finalists": MAX_FINALISTS + 1}, "finalists"),
        ({"max_matches": -1}, "max_matches"),
        ({"max_retries": 17}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
    ],
)
def test_a_parameter_out_of_its_range_is_refused_by_its_name(change: dict[str, int], field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        TournamentParams(**change)


def test_a_tournament_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="entrants"):
        Tournament(0, TournamentParams())


PARAMS = st.builds(
    TournamentParams,
    finalists=st.integers(1, 9),
    max_matches=st.none() | st.integers(0, 40),
    max_retries=st.integers(0, 2),
)


@given(st.integers(1, 20), PARAMS, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.3, 1.0]))
def test_with_any_failures_and_orders_it_ends_with_an_entrant_and_keeps_its_bounds(
    entrants: int, params: TournamentParams, rng: random.Random, failing: float
) -> None:
    tournament = Tournament(entrants, params)
    most = tournament.matches_left
    left = [most]

    def look() -> None:
        assert sorted(tournament.ranking()) == list(range(entrants))
        left.append(tournament.matches_left)
        assert left[-1] <= left[-2]

    def judge(_: Pair) -> float | None:
        return None if rng.random() < failing else rng.choice([0.0, 0.3, 0.5, 0.8, 1.0])

    asked = play(tournament, judge, rng, look)
    assert len(asked) <= most
    assert max((asked.count(pair) for pair in asked), default=0) <= params.max_retries + 1
    assert all(0 <= a < b < entrants for a, b in asked)
    assert 0 <= tournament.leader() < entrants
    assert tournament.ask(10) == []


@given(st.integers(2, 9), st.randoms(use_true_random=False))
def test_in_a_round_robin_one_who_beats_all_others_wins_whatever_else_fails(
    entrants: int, rng: random.Random
) -> None:
    champion = rng.randrange(entrants)
    results: dict[Pair, float | None] = {
        pair: rng.choice([None, 0.0, 0.5, 1.0]) for pair in combinations(range(entrants), 2)
    }
    for pair in results:
        if champion in pair:
            results[pair] = 0.51 if pair[0] == champion else 0.49
    tournament = Tournament(entrants, TournamentParams(finalists=entrants))
    play(tournament, results.__getitem__, rng)
    assert tournament.leader() == champion
    assert not tournament.tie


@settings(max_examples=50)
@given(st.integers(1, 20), PARAMS, st.randoms(use_true_random=False))
def test_the_same_results_give_the_same_winner_in_any_order(
    entrants: int, params: TournamentParams, rng: random.Random
) -> None:
    results = {pair: rng.random() for pair in combinations(range(entrants), 2)}
    whole = TournamentParams(finalists=params.finalists)
    in_turn, shuffled = Tournament(entrants, whole), Tournament(entrants, whole)
    play(in_turn, results.__getitem__)
    play(shuffled, results.__getitem__, rng)
    assert in_turn.leader() == shuffled.leader()
