"""A tournament of pairwise comparisons: whom to compare next, and who leads.

Algorithm: the entrants are dealt into `finalists` groups, each of which has a knockout; the groups' winners
play every one against every other. A pair is known as soon as the two before it are decided, so that nothing
waits for a whole round. `finalists=1` is a plain knockout; as many finalists as entrants, a plain round
robin. n entrants and k finalists cost n - k + k(k - 1)/2 matches, and repeats of failed ones.

Standing: who has lost no knockout match; then wins less losses in the final (Copeland's rule), so that a
finalist who beats all others wins; then margins; then the same in the knockout; then the earlier entrant.

A failed match is asked again up to `max_retries` times. One that stays without a result decides nothing: in
the final it counts for neither side; a knockout must go on, and does so with the earlier entrant, as after an
exact draw. So entrants belong in the order of what else is known of them, best first.

Sources: Copeland, "A reasonable social welfare function", 1951. Pairwise judging of sampled answers in a
knockout: Jiang et al., "LLM-Blender", ACL 2023 (arXiv 2306.02561), for pairwise over pointwise ranking; Chen
et al., "A Simple and Provable Scaling Law for the Test-Time Compute of LLMs", 2024 (arXiv 2411.19477), for
the knockout.

Known limits: a knockout of single matches lets a good entrant fall by one wrong comparison; more finalists
cost more and forgive more. Preferences that go in circles are settled by margins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from search import bracket
from search.bracket import Pair
from search.params import MAX_SAMPLES, require_int

MAX_FINALISTS = 32


@dataclass(frozen=True, slots=True)
class TournamentParams:
    """Parameters of `Tournament`.

    Args:
        finalists: groups, whose winners play a round robin; fewer entrants make fewer groups.
        max_matches: matches asked at most, repeats included; None for as many as there are.
        max_retries: how often one failed match is asked again.

    Raises:
        ValueError: a value is out of its range.
    """

    finalists: int = 4
    max_matches: int | None = None
    max_retries: int = 1

    def __post_init__(self) -> None:
        require_int("finalists", self.finalists, 1, MAX_FINALISTS)
        if self.max_matches is not None:
            require_int("max_matches", self.max_matches, 0, MAX_SAMPLES * MAX_FINALISTS)
        require_int("max_retries", self.max_retries, 0, 16)


@dataclass(slots=True)
class _Match:
    tries: int = 0
    running: bool = False
    first_better: float | None = None
    settled: bool = False


@dataclass(slots=True)
class _Standing:
    """How one entrant stands: wins less losses, and the sum of margins, in the final and in the knockout."""

    seed: int
    out: bool = False
    went_on_by_order: bool = False
    final: int = 0
    final_margin: float = 0.0
    knockout: int = 0
    knockout_margin: float = 0.0

    def add(self, margin: float, final: bool) -> None:
        win = (margin > 0) - (margin < 0)
        if final:
            self.final += win
            self.final_margin += margin
        else:
            self.knockout += win
            self.knockout_margin += margin

    @property
    def key(self) -> tuple[bool, int, float, int, float, int]:
        """Sort key, the greatest leads."""
        knockout = (self.knockout, self.knockout_margin)
        return (not self.out, self.final, self.final_margin, *knockout, -self.seed)


class Tournament:
    """See the module's docstring. Entrants are known by their place in the order, from 0.

    Args:
        entrants: how many there are, at least one, the most promising first.
    """

    def __init__(self, entrants: int, params: TournamentParams) -> None:
        require_int("entrants", entrants, 1, MAX_SAMPLES)
        self._entrants = entrants
        self._params = params
        groups = bracket.split(range(entrants), min(params.finalists, entrants))
        self._groups = [bracket.make_bracket(group) for group in groups]
        self._group_of = {seed: number for number, group in enumerate(groups) for seed in group}
        self._matches: dict[Pair, _Match] = {}
        self._asked = 0

    @property
    def matches_left(self) -> int:
        """Matches that may still be asked at most, those that run now not counted."""
        if self._decided():
            return 0
        k = len(self._groups)
        planned = self._entrants - k + k * (k - 1) // 2
        open_ = planned - len(self._matches)
        retries = open_ * self._params.max_retries + sum(
            self._params.max_retries + 1 - m.tries for m in self._matches.values() if not m.settled
        )
        return min(self._free(), open_ + retries)

    @property
    def finished(self) -> bool:
        """Nothing more will be asked; what still runs can change nothing and may be cancelled."""
        if self._decided():
            return True
        return not any(m.running for m in self._matches.values()) and next(self._next(), None) is None

    def ask(self, most: int) -> list[Pair]:
        """Up to `most` matches to start now; each is told of once, under the same pair."""
        asked: list[Pair] = []
        if self._decided():
            return asked
        for pair in self._next():
            if len(asked) >= min(most, self._free()):
                break
            asked.append(pair)
        for pair in asked:
            match = self._matches.setdefault(pair, _Match())
            match.tries += 1
            match.running = True
        self._asked += len(asked)
        return asked

    def tell(self, pair: Pair, first_better: float | None) -> None:
        """A match came back: the probability (0..1) that the first is better, None when it failed.

        What is no probability counts as failed; a match that does not run is ignored.
        """
        match = self._matches.get(pair)
        if match is None or not match.running:
            return
        match.running = False
        if first_better is not None and 0.0 <= first_better <= 1.0:
            match.first_better = first_better
            match.settled = True
        elif match.tries > self._params.max_retries:
            match.settled = True

    def leader(self) -> int:
        """Who wins if the tournament has to end now."""
        return self.ranking()[0]

    @property
    def tie(self) -> bool:
        """Whether the leader owes its place to the entrants' order: it is ahead of the next by that alone,
        or went on in the knockout without a result."""
        table = self._table()
        first, *rest = sorted(table, key=lambda seed: table[seed].key, reverse=True)
        alike = bool(rest) and table[first].key[:-1] == table[rest[0]].key[:-1]
        return alike or table[first].went_on_by_order

    def ranking(self) -> list[int]:
        """All entrants, the leader first."""
        table = self._table()
        return sorted(table, key=lambda seed: table[seed].key, reverse=True)

    def _free(self) -> int:
        most = self._params.max_matches
        return MAX_SAMPLES * MAX_SAMPLES if most is None else most - self._asked

    def _next(self) -> Iterator[Pair]:
        """Known matches that are neither settled nor running, in the order in which they are asked."""
        if self._free() <= 0:
            return
        for pair in self._known():
            match = self._matches.get(pair)
            if match is None or not (match.settled or match.running):
                yield pair

    def _known(self) -> Iterator[Pair]:
        for group in self._groups:
            yield from bracket.known_pairs(group, self._result)
        yield from self._final_pairs()

    def _final_pairs(self) -> Iterator[Pair]:
        winners = [bracket.winner(group, self._result) for group in self._groups]
        yield from combinations(sorted(w for w in winners if w is not None), 2)

    def _result(self, pair: Pair) -> int | None:
        """The winner of a knockout match; the earlier entrant where it decided nothing."""
        match = self._matches.get(pair)
        if match is None or not match.settled:
            return None
        return pair[1] if match.first_better is not None and match.first_better < 0.5 else pair[0]

    def _decided(self) -> bool:
        """Whether the final has a leader whom no result still to come can catch up with."""
        winners = [bracket.winner(group, self._result) for group in self._groups]
        finalists = [w for w in winners if w is not None]
        if len(finalists) < len(winners) or len(winners) == 1:
            return False
        open_ = dict.fromkeys(finalists, 0)
        for pair in combinations(sorted(finalists), 2):
            match = self._matches.get(pair)
            if match is None or not match.settled:
                for seed in pair:
                    open_[seed] += 1
        table = self._table()
        best = max(finalists, key=lambda seed: table[seed].final)
        worst_case = table[best].final - open_[best]
        return all(worst_case > table[seed].final + open_[seed] for seed in finalists if seed != best)

    def _table(self) -> dict[int, _Standing]:
        table = {seed: _Standing(seed) for seed in range(self._entrants)}
        # In one order, whatever order they came in, since sums of margins depend on it in the last digit.
        for pair, match in sorted(self._matches.items(), key=lambda item: item[0]):
            if not match.settled:
                continue
            final = self._group_of[pair[0]] != self._group_of[pair[1]]
            margin = 0.0 if match.first_better is None else match.first_better - 0.5
            table[pair[0]].add(margin, final)
            table[pair[1]].add(-margin, final)
            if not final:
                loser = pair[0] if self._result(pair) == pair[1] else pair[1]
                table[loser].out = True
                table[pair[0]].went_on_by_order |= margin == 0
        return table
