"""its_hub 1.2.0 as its users run it: its own client and algorithms in this process. Runs in its environment.

Its orchestrator's limit on concurrent calls is lifted, since the engine has its own: with the default of 32
the engine would run half empty at sixteen searches of sixteen samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Mapping
from typing import Any

from its_hub import (  # type: ignore[import-not-found]
    AbstractOutcomeRewardModel,
    AbstractProcessRewardModel,
    AdaptiveSelfConsistency,
    BestOfN,
    BetaSelfConsistency,
    LMOrchestrator,
    OpenAICompatibleLanguageModel,
    SelfConsistency,
    StepGeneration,
)
from its_hub.core.algorithms.beam_search import BeamSearch  # type: ignore[import-not-found]
from its_hub.core.algorithms.particle_gibbs import ParticleFiltering  # type: ignore[import-not-found]
from its_hub.core.algorithms.self_consistency import (  # type: ignore[import-not-found]
    create_regex_projection_function,
)

from infra.bench.peers import wire
from infra.bench.peers.prm import LINE, TinyReasoner, unlimited

ANSWER = r"Answer:\s*(-?\d+)"
MAX_STEPS = 12


class Outcome(AbstractOutcomeRewardModel):  # type: ignore[misc]
    """Scores whole conversations by the process reward of their last message."""

    def __init__(self, model: TinyReasoner, prompts: Mapping[str, str]) -> None:
        self._model = model
        self._prompts = prompts

    def score(self, messages: Any, **_: Any) -> Any:
        raise NotImplementedError("asynchronous only")

    async def ascore(self, messages: Any, orchestrator: Any = None, **_: Any) -> Any:
        texts = [self._prompts[query.content] + (answer.content or "") for query, answer in messages]
        return await _all_scores(self._model, texts)


class Process(AbstractProcessRewardModel):  # type: ignore[misc]
    """Scores the lines of partial answers."""

    def __init__(self, model: TinyReasoner, prompts: Mapping[str, str]) -> None:
        self._model = model
        self._prompts = prompts

    def score(self, prompt_or_messages: Any, steps: Any) -> Any:
        raise NotImplementedError("asynchronous only")

    async def ascore(self, prompt_or_messages: Any, steps: Any) -> Any:
        return await _all_scores(self._model, [self._prompts[prompt_or_messages] + text for text in steps])


async def _all_scores(model: TinyReasoner, texts: list[str]) -> list[float]:
    return list(await asyncio.gather(*(model.score(text) for text in texts)))


def algorithm(turn: wire.Turn, model: TinyReasoner) -> Any:
    """The technique of a turn, set up as its documentation does.

    Raises:
        ValueError: there is no such technique.
    """
    prompts = {problem["prompt"]: problem["rendered"] for problem in turn["problems"]}
    free = LMOrchestrator(max_concurrency=-1)
    by_answer = create_regex_projection_function(ANSWER)
    steps = StepGeneration(
        max_steps=MAX_STEPS,
        step_token=LINE,
        stop_token="Answer:",
        temperature=turn["settings"]["temperature"],
    )
    match turn["technique"]:
        case "self_consistency":
            return SelfConsistency(by_answer, orchestrator=free)
        case "beta":
            return BetaSelfConsistency(consistency_space_projection_func=by_answer, orchestrator=free)
        case "adaptive":
            return AdaptiveSelfConsistency(consistency_space_projection_func=by_answer, orchestrator=free)
        case "best_of_n":
            return BestOfN(Outcome(model, prompts), orchestrator=free)
        case "beam":
            return BeamSearch(steps, Process(model, prompts), turn["params"]["beam_width"])
        case "particles":
            return ParticleFiltering(steps, Process(model, prompts))
    raise ValueError(f"no technique {turn['technique']!r}")


@contextlib.asynccontextmanager
async def opened(turn: wire.Turn) -> AsyncIterator[wire.Session]:
    settings = turn["settings"]
    language_model = OpenAICompatibleLanguageModel(
        endpoint=f"{settings['engine']}/v1",
        api_key="none",
        model_name=settings["model"],
        temperature=settings["temperature"],
        max_completion_tokens=settings["max_new_tokens"],
    )
    async with unlimited() as http, language_model:
        model = TinyReasoner(http, settings)
        technique = algorithm(turn, model)

        async def answer(problem: wire.Problem) -> wire.Answer:
            result = await technique.ainfer(
                language_model, problem["prompt"], settings["n"], return_response_only=False
            )
            used = getattr(result, "usage", None)
            extra = {} if used is None else {"generated": used.completion_tokens, "calls": used.num_calls}
            return wire.Answer(result.the_one["content"], extra)

        session = wire.Session(answer)
        yield session
        session.scores = model.scores


if __name__ == "__main__":
    # Its beam and particle searches call a method that its own client declares deprecated, at every step.
    warnings.simplefilter("ignore", DeprecationWarning)
    wire.serve(opened)
