"""Best-of-N by comparisons: see `search.best_of_n`.

All samples are drawn first. Then their answers, one sample for each, most votes first, meet in a tournament
(`search.tournament`); where none has an answer, all texts do. Until then, and where the judge fails, the vote
stands. A comparison that fails never changes the answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from search.ballot import Ballot
from search.best_of_n import BestOfNParams
from search.bracket import Pair
from search.choice import rank
from search.contract import Call, CallId, Candidate, Compare, Compared, Event, Failed, Room
from search.ground import Ground
from search.rollout import Plan
from search.sample import Sample
from search.sampling import SampleSearch, first_by_visibility
from search.tournament import Tournament


class JudgedBestOfN(SampleSearch):
    """See the module's docstring.

    `gain()`: the share of the vote that the leader lacks, shared with the samples so far, per expected tokens
    of one more sample.
    """

    def __init__(self, params: BestOfNParams, ground: Ground) -> None:
        super().__init__(ground, Plan(params.n, params.width, params.max_retries))
        self._ground = ground
        self._params = params
        self._ballot = Ballot()
        self._entrants: list[Sample] = []
        self._tournament: Tournament | None = None
        self._matches: dict[CallId, Pair] = {}
        self._held: Counter[int] = Counter()  # by node, matches that need its KV
        self._waiting: list[Pair] = []
        self._judged: set[int] = set()

    def ask(self, room: Room) -> list[Call]:
        calls = super().ask(room)
        if self._tournament is None:
            return calls
        return [*calls, *self._compares(replace(room, slots=room.slots - len(calls)))]

    def tell(self, event: Event) -> list[CallId]:
        pair = self._matches.pop(event.call, None)
        if pair is None or self._tournament is None:
            return super().tell(event)
        self._let_go(pair)
        self._tournament.tell(pair, event.first_better if isinstance(event, Compared) else None)
        if not isinstance(event, Failed):
            self._judged |= set(pair)
            self._chosen = self._choose()
        return self._ended_by(self._reason_to_stop())

    def release(self) -> None:
        if self._matches:
            raise RuntimeError(f"{len(self._matches)} calls are in flight")
        super().release()

    def _compares(self, room: Room) -> list[Compare]:
        """Matches to start, as far as there is room for them and the KV of both texts."""
        assert self._tournament is not None
        live = self.tree.live_tokens
        cost = self._ground.costs.compare_tokens
        calls: list[Compare] = []
        most = room.slots if cost == 0 else min(room.slots, room.tokens // cost)
        if most > len(self._waiting):
            self._waiting += self._tournament.ask(most - len(self._waiting))
        for pair in list(self._waiting[: max(0, most)]):
            one, other = (self._entrants[seed].nodes[-1] for seed in pair)
            for node in (one, other):
                self.tree.wake(node)
            self._held.update((one, other))
            if self.tree.live_tokens - live > room.kv_tokens:
                self._let_go(pair)
                break
            self._waiting.remove(pair)
            call = Compare(next(self._ground.calls), one, other, self._begin)
            self._matches[call.id] = pair
            calls.append(call)
        return calls

    def _let_go(self, pair: Pair) -> None:
        for node in (self._entrants[seed].nodes[-1] for seed in pair):
            self._held[node] -= 1
            if not self._held[node]:
                self.tree.retire(node)

    def _take(self, sample: Sample) -> list[CallId]:
        if sample.key is not None:
            self._ballot.add(sample.key, sample.index)
        return []

    def _merge(self, key: str, into: str) -> None:
        self._ballot.merge(key, into)

    def _reason_to_stop(self) -> str | None:
        if self._grouping.pending or not self._rollout.done:
            return None
        if self._tournament is None:
            self._entrants = self._find_entrants()
            if len(self._entrants) < 2:
                return self._all_done()
            self._tournament = Tournament(len(self._entrants), self._params.tournament)
        return "judged" if self._tournament.finished else None

    def _ended_by(self, reason: str | None) -> list[CallId]:
        cancels = super()._ended_by(reason)
        if reason is not None:
            cancels += sorted(self._matches)
            for pair in self._matches.values():
                self._let_go(pair)
            self._matches.clear()
        return cancels

    def _find_entrants(self) -> list[Sample]:
        groups = self._ballot.groups()
        if groups:
            return [min((self._rollout.samples[i] for i in g.votes), key=rank) for g in groups]
        texts: dict[str, Sample] = {}
        for sample in sorted(self._complete, key=lambda s: s.index):
            if sample.visible:
                texts.setdefault(self.tree.path_text(sample.nodes[-1], self._begin).strip(), sample)
        return list(texts.values())

    def _choose(self) -> Candidate:
        shares = {g.key: len(g.votes) / len(self._ballot) for g in self._ballot.groups()}
        if self._tournament is not None and self._judged:
            sample, tie = self._entrants[self._tournament.leader()], self._tournament.tie
        elif (standing := self._ballot.standing()) is not None:
            sample, tie = min((self._rollout.samples[i] for i in standing.samples), key=rank), standing.tie
        else:
            sample, tie = first_by_visibility(self._complete), False
        return Candidate(
            sample.nodes[-1],
            sample.answer,
            sample.key,
            complete=True,
            support=shares.get(sample.key or "", 1.0),
            tie=tie,
            begin=self._begin,
        )

    def _fate_of(self, sample: Sample) -> tuple[str, str]:
        fate, reason = super()._fate_of(sample)
        if fate == "no_answer" and self._judged and sample in self._entrants:
            return "outscored", "the judge preferred another text"
        return fate, reason

    def _fate(self, sample: Sample, chosen: Candidate) -> tuple[str, str]:
        if sample.key == chosen.key:
            return "agreed", "the same answer as the chosen one"
        if self._judged:
            return "outscored", "the judge preferred another answer"
        return "outvoted", self._why_chosen(chosen)

    def _why_chosen(self, chosen: Candidate) -> str:
        if self._judged:
            why = f"the judge's choice among {len(self._entrants)} answers"
        else:
            why = f"{chosen.support:.0%} of the votes; no comparison has come back"
        return f"{why}, a tie that the order decides" if chosen.tie else why

    def _expected_gain(self) -> float:
        sure = 0.0 if self._chosen is None else self._chosen.support
        return (1.0 - sure) / (len(self._complete) + 1)
