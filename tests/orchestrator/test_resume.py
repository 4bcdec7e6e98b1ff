"""A search that was killed halfway goes on from its log, on an engine that knows nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines.protocol import Sampling
from engines.scripted import Behaviour, ScriptedEngine
from orchestrator.runner import RunLimits, SearchRun
from orchestrator.tracing import QueryTrace
from orchestrator.verifiers.port import Verifiers
from search.contract import Candidate, Costs
from search.log import EventLog, Header, Recorder, record, replay
from search.registry import TECHNIQUES
from search.resume import Pending, in_flight
from search.sample import SampleLimits
from support.world import EOS, memory_tracer, scripted_model
from tests.orchestrator.test_runner_steps import PROMPT, lines, worth

LIMITS = SampleLimits(64, 512, step_ends=("\n",), step_tokens=32)
COSTS = Costs(score_tokens=2)
SEARCHES: dict[str, dict[str, Any]] = {
    "self_consistency": {"n": 12, "width": 3, "stop": "none"},
    "beam": {"width": 2, "expand": 4},
    "mcts": {"expansions": 64, "answers": 6, "width": 1},
}


def goes_on(ids: tuple[int, ...], seed: int | None) -> Sequence[int]:
    """As `lines`, but a line that has begun is only ended, whoever asks for the rest of it."""
    text = "".join(map(chr, ids)).removeprefix(PROMPT)
    begun = text.rpartition("\n")[2]
    if not begun:
        return lines(ids, seed)
    whole = next(line for line in ("good\n", "poor\n", "Answer: 7", "Answer: 8") if line.startswith(begun))
    if whole.startswith("Answer"):
        whole = f"Answer: {8 if 'poor' in text else 7}"
        return [*map(ord, whole.removeprefix(begun)), EOS]
    rest = whole.removeprefix(begun)
    return [*map(ord, rest), *lines((*ids, *map(ord, rest)), seed)]


def header(name: str) -> Header:
    params = TECHNIQUES[name].params_type(**SEARCHES[name])
    return Header(name, params, LIMITS, COSTS, 5, tuple(map(ord, PROMPT)))


async def run(search: Recorder, resume: Sequence[Pending] = ()) -> tuple[SearchRun, ScriptedEngine]:
    """Run a search to its end."""
    model, engine = scripted_model(
        goes_on, score=worth, step_ends=("\n",), behave=lambda _, __: Behaviour(chunk_tokens=2)
    )
    provider, _ = memory_tracer()
    trace = QueryTrace(provider.get_tracer("test"), search_id="s", model="toy", carrier={})
    assert model.scorer is not None
    run = SearchRun(
        "s",
        model,
        search,
        Sampling(max_new_tokens=64, temperature=1.0),
        RunLimits(100_000, None, 64, COSTS),
        cache_salt=None,
        trace=trace,
        verifiers=Verifiers(scorer=model.scorer),
    )
    await run.execute(resume)
    return run, engine


def outcome(search: Recorder) -> tuple[Candidate | None, str | None]:
    best = search.best()
    return (None if best is None else replace(best, node=0)), search.stop_reason


@pytest.mark.parametrize("name", SEARCHES)
async def test_a_killed_search_resumes_from_its_log_and_ends_with_the_same_answer(name: str) -> None:
    undisturbed = record(header(name), 100_000)
    await run(undisturbed)
    entries = len(undisturbed.log.entries)
    text = undisturbed.tree.path_text(undisturbed.best().node)  # type: ignore[union-attr]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        log = EventLog(undisturbed.log.header, 100_000, undisturbed.log.entries[: int(share * entries)])
        again = EventLog.from_lines(log.to_lines())
        search = Recorder(replay(again), again)
        waiting = in_flight(again)
        done, engine = await run(search, waiting)
        assert done.stop_reason is None
        assert search.best() is not None
        assert search.tree.path_text(search.best().node) == text  # type: ignore[union-attr]
        assert outcome(search)[0].answer == outcome(undisturbed)[0].answer  # type: ignore[union-attr]
        assert outcome(search)[1] == outcome(undisturbed)[1]
        while engine.running:  # the last call's own clean-up
            await asyncio.sleep(0.001)
