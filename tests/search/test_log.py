from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest

from search.contract import Checked, Chunk, Costs, Event, Failed, Generated, Room, Scored
from search.extract import ThinkingMarkers
from search.log import Asked, EventLog, Header, Recorder, Released, ReplayMismatch, Told, record, replay
from search.registry import TECHNIQUES
from search.sample import SampleLimits
from tests.search.drive import PHRASES, PROMPT, World, says

LIMITS = SampleLimits(100, 1000, ThinkingMarkers(starts_inside=True, open="<t>", close="</t>"), whole=True)


def header(technique: str = "best_of_n", seed: int = 7) -> Header:
    params = TECHNIQUES[technique].params_type()
    return Header(technique, params, LIMITS, Costs(score_tokens=3), seed, PROMPT, PHRASES)


def recorded(technique: str = "best_of_n", max_entries: int = 10_000) -> Recorder:
    recorder = record(header(technique), max_entries)
    scripts = [says(str(i % 3), 10 + i, i / 20) for i in range(18)]
    World(scripts, costs=Costs(score_tokens=3), tokens=900, rng=random.Random(3)).run(recorder)
    return recorder


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_recorder_is_the_search_it_records(technique: str) -> None:
    recorder = recorded(technique)
    plain = TECHNIQUES[technique].build(
        PROMPT, TECHNIQUES[technique].params_type(), LIMITS, Costs(score_tokens=3), 7, PHRASES
    )
    scripts = [says(str(i % 3), 10 + i, i / 20) for i in range(18)]
    World(scripts, costs=Costs(score_tokens=3), tokens=900, rng=random.Random(3)).run(plain)
    assert recorder.best() == plain.best()
    assert recorder.branches() == plain.branches()
    assert (recorder.finished, recorder.stop_reason) == (plain.finished, plain.stop_reason)
    assert recorder.tree.generated_tokens == plain.tree.generated_tokens
    assert recorder.gain() == plain.gain()


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_log_survives_the_round_trip_byte_for_byte_and_replays(technique: str) -> None:
    recorder = recorded(technique)
    lines = recorder.log.to_lines()
    again = EventLog.from_lines(lines)
    assert again == recorder.log
    assert again.to_lines() == lines
    search = replay(again)
    assert search.best() == recorder.best()
    assert search.branches() == recorder.branches()


def test_a_replay_of_the_first_part_is_the_search_at_that_point() -> None:
    recorder = recorded()
    part = dataclasses.replace(recorder.log, entries=recorder.log.entries[:20])
    search = replay(part)
    assert not search.finished
    continued = World([says("1")], costs=Costs(score_tokens=3))
    assert search.tree.generated_tokens > 0
    assert continued.ask(search) is not None


def test_a_search_that_does_something_else_is_a_mismatch_with_its_place() -> None:
    log = recorded().log
    first = log.entries[0]
    assert isinstance(first, Asked)
    other = dataclasses.replace(log, header=header(seed=8))
    with pytest.raises(ReplayMismatch) as caught:
        replay(other)
    assert caught.value.entry == 0
    assert caught.value.expected == first.calls
    assert caught.value.got != first.calls


def test_other_cancels_are_a_mismatch() -> None:
    log = recorded("self_consistency").log
    place = next(i for i, e in enumerate(log.entries) if isinstance(e, Told) and e.cancels)
    entry = log.entries[place]
    assert isinstance(entry, Told)
    log.entries[place] = dataclasses.replace(entry, cancels=())
    with pytest.raises(ReplayMismatch, match=f"entry {place}") as caught:
        replay(log)
    assert caught.value.got == entry.cancels


def test_a_full_log_stops_recording_and_says_so_while_the_search_goes_on() -> None:
    recorder = recorded(max_entries=10)
    assert recorder.finished
    assert len(recorder.log.entries) == 10
    assert recorder.log.truncated
    lines = recorder.log.to_lines()
    assert json.loads(lines[-1]) == {"truncated": True}
    again = EventLog.from_lines(lines)
    assert again == recorder.log
    assert not replay(again).finished


def test_every_kind_of_event_and_number_survives() -> None:
    log = EventLog(header(), 100)
    events: list[Event] = [
        Chunk(1, (5, 6), 'line\n"\u2028\U0001f600\ud800', (-0.1, -math.inf)),
        Generated(1, "context"),
        Scored(2, 0.1 + 0.2),
        Scored(2, math.inf),
        Checked(3, "unsure", 0.5),
        Checked(3, "error"),
        Failed(4, "lost"),
    ]
    for event in events:
        log.append(Told(event, (1, 2)))
    log.append(Asked(Room(1, 2, 3, 0.25), ()))
    log.append(Released())
    lines = log.to_lines()
    assert all(line.isascii() and "\n" not in line for line in lines)
    assert EventLog.from_lines(lines) == log
    log.append(Told(Scored(2, math.nan), ()))
    again = EventLog.from_lines(log.to_lines()).entries[-1]
    assert isinstance(again, Told)
    assert isinstance(again.event, Scored)
    assert math.isnan(again.event.score)


def test_a_release_while_calls_are_in_flight_is_neither_done_nor_recorded_and_is_a_mismatch_in_a_log() -> (
    None
):
    recorder = record(header(), 100)
    recorder.release()
    recorder.ask(Room(1, 1000, 1000))
    with pytest.raises(RuntimeError, match="in flight"):
        recorder.release()
    assert [type(e) for e in recorder.log.entries] == [Released, Asked]
    recorder.log.append(Released())
    with pytest.raises(ReplayMismatch) as caught:
        replay(recorder.log)
    assert caught.value.entry == 2


GOOD = EventLog(header(), 10).to_lines()[0]


def with_a_list_as(name: str) -> str:
    """The header with a list where it has an object."""
    return json.dumps(json.loads(GOOD) | {name: []})


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["[]"],
        ["not json"],
        [GOOD.replace('"format":3', '"format":2')],
        [GOOD.replace("best_of_n", "magic")],
        [GOOD.replace('"n":16', '"n":0')],
        [GOOD.replace('"n":16', '"m":16')],
        [with_a_list_as("phrases")],
        [with_a_list_as("limits")],
        [with_a_list_as("params")],
        [GOOD, '{"tell":{"kind":"rumour"},"cancel":[]}'],
        [GOOD, '{"tell":{"kind":"failed","call":1},"cancel":[]}'],
        [GOOD, "7"],
        [GOOD, '{"release":false}'],
        [
            GOOD,
            '{"truncated":true}',
            '{"ask":{"slots":1,"tokens":1,"kv_tokens":1,"seconds":null},"calls":[]}',
        ],
    ],
)
def test_a_malformed_log_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        EventLog.from_lines(lines)
