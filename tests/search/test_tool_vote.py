from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from search.contract import Candidate, Costs, Event, Generated, Search
from search.extract import ThinkingMarkers
from search.ground import Ground
from search.sample import SampleLimits
from search.self_consistency import REFUSED, SelfConsistency, SelfConsistencyParams
from search.tool_calls import ToolMarkers
from search.tool_vote import ToolVote
from tests.search.drive import PROMPT, Script, World, one_by_one, says

LIMITS = SampleLimits(100, 1000, ThinkingMarkers(), tool_calls=ToolMarkers())


def calls(city: str, spaces: str = "") -> Script:
    """A script that calls a tool."""
    arguments = f'{{"city":{spaces} "{city}"}}'
    return Script(
        (*["let me see "] * 3, f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>')
    )


class ToolWorld(World):
    """Where a best may go away again: calls that lose their majority, and those that are refused."""

    def check(self, search: Search, event: Event, before: Candidate | None) -> None:
        assert (search.best() is None) is (search.stop_reason == REFUSED)


def run(scripts: list[Script], **params: Any) -> SelfConsistency:
    n = len(scripts)
    defaults = {"n": n, "width": n, "stop": "none", "max_retries": 0, "give_up_after": n}
    search = SelfConsistency(
        SelfConsistencyParams(**{**defaults, **params}), Ground.of(PROMPT, LIMITS, Costs(), 7)
    )
    one_by_one(ToolWorld(scripts), search, list(range(n)))
    return search


def answer(search: SelfConsistency) -> str | None:
    best = search.best()
    return None if best is None else best.answer


def test_case_37_two_of_five_samples_that_call_a_tool_do_not_win() -> None:
    search = run([calls("Oslo"), calls("Oslo"), says("7"), says("8"), says("9")])
    assert answer(search) == "7"
    branch = search.branches()[0]
    assert (branch.fate, branch.reason) == ("outvoted", "it calls tools, which most samples do not")


def test_case_37_a_true_majority_of_calls_wins_and_is_voted_on_among_itself() -> None:
    search = run([says("7"), calls("Rome"), calls("Oslo"), says("7"), calls("Oslo", "  ")])
    text = answer(search)
    assert text is not None
    assert "Oslo" in text
    best = search.best()
    assert best is not None
    assert best.support == 2 / 3


def test_half_of_the_samples_are_no_majority() -> None:
    assert answer(run([calls("Oslo"), calls("Oslo"), says("7"), says("9")])) == "7"


def test_texts_without_an_answer_count_against_calls() -> None:
    prose = Script(("a long text of more than one short line, ", "and no final answer in it"))
    assert answer(run([calls("Oslo"), calls("Oslo"), prose, prose, says("7")])) == "7"


@pytest.mark.parametrize("tool_vote", ["majority", "refuse"])
def test_a_call_that_is_no_majority_is_not_the_answer_where_no_other_text_has_one(tool_vote: str) -> None:
    prose = Script(("a long text of more than one short line, ", "and no final answer in it"))
    search = run([calls("Oslo"), prose], tool_vote=tool_vote)
    assert [b.fate for b in search.branches()] == ["outvoted", "chosen"]


@pytest.mark.parametrize("give_up_after", [2, 9])
def test_case_37_a_set_that_only_calls_tools_and_may_not_ends_without_an_answer(give_up_after: int) -> None:
    search = run(
        [calls("Oslo"), calls("Oslo"), calls("Rome")], tool_vote="refuse", give_up_after=give_up_after
    )
    assert search.stop_reason == "tool_calls_without_strategy"
    assert search.best() is None
    assert search.branches()[0].reason == "it calls tools, which is refused here"


def test_refused_calls_have_no_vote_beside_answers() -> None:
    search = run([calls("Oslo"), calls("Oslo"), says("7")], tool_vote="refuse")
    assert answer(search) == "7"
    assert search.stop_reason == "all_done"
    branch = search.branches()[0]
    assert (branch.fate, branch.reason) == ("outvoted", "it calls tools, which is refused here")


def test_a_half_written_call_is_no_call() -> None:
    broken = Script(('<tool_call>{"name": "weather", ', '"arguments": {'))
    search = run([broken, broken, says("7")])
    assert answer(search) == "7"


def test_calls_are_never_asked_to_be_equated_with_answers() -> None:
    limits = SampleLimits(100, 1000, tool_calls=ToolMarkers(), equate=True)
    params = SelfConsistencyParams(n=3, width=3, stop="none", max_retries=0)
    search = SelfConsistency(params, Ground.of(PROMPT, limits, Costs(), 7))
    world = World([calls("Oslo"), calls("Rome"), says("7")])
    one_by_one(world, search, [0, 1, 2])
    assert search.finished
    assert len(world.asked) == 3


def test_agreeing_calls_end_the_vote_early() -> None:
    search = run([calls("Oslo")] * 9, n=9, width=1, stop="beta")
    assert search.stop_reason == "confident"
    assert len(search.branches()) == 4


def test_the_exact_stop_waits_while_calls_may_still_become_a_majority() -> None:
    """Two answers agree, and the three that are to come could all call tools."""
    params = SelfConsistencyParams(n=5, width=5, stop="none", max_retries=0)
    search = SelfConsistency(params, Ground.of(PROMPT, LIMITS, Costs(), 7))
    world = World([says("7")] * 5, rng=random.Random(0))
    world.run(search, until=lambda: sum(isinstance(e, Generated) for e in world.events) == 2)
    assert not search.finished
    world.run(search)
    assert search.stop_reason == "decided"


def test_the_kind_is_decided_just_when_no_continuation_changes_it() -> None:
    for size, remaining in itertools.product(range(6), range(4)):
        for kinds in itertools.product((False, True), repeat=size):
            outcomes = set()
            for more in itertools.product((False, True, None), repeat=remaining):
                vote = ToolVote("majority")
                for kind in (*kinds, *(m for m in more if m is not None)):
                    vote.take(calls_tools=kind)
                outcomes.add(vote.calls)
            vote = ToolVote("majority")
            for kind in kinds:
                vote.take(calls_tools=kind)
            assert vote.decided(remaining) is (len(outcomes) == 1)


def test_the_kind_is_clear_when_it_is_the_only_one_or_leads_by_far() -> None:
    def vote(kinds: str) -> ToolVote:
        out = ToolVote("majority")
        for kind in kinds:
            out.take(calls_tools=kind == "t")
        return out

    assert vote("").clear(0.95)
    assert vote("t").clear(0.95)
    assert not vote("ttta").clear(0.95)
    assert vote("tttttttta").clear(0.95)
