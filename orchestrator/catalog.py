"""A served model: its replicas, tokenizer and verifier form, and what its running searches hold."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.protocol import Engine, EngineError
from orchestrator.gauge import Gauge
from orchestrator.verifiers.llm_judge import JudgeModel
from orchestrator.verifiers.port import Scorer
from search.extract import ThinkingMarkers


class Tokenizer(Protocol):
    """What the orchestrator needs of a model's tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def encode_turn(self, content: str) -> tuple[int, ...]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Sampling limits and temperature where the request names none."""

    max_new_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Replicas:
    """Engines of one model, all alike."""

    engines: tuple[Engine, ...]

    async def pick(self) -> Engine | None:
        """The one that is ready and has the fewest calls running; None when none is ready."""
        if len(self.engines) == 1:
            return self.engines[0] if await self.engines[0].ready() else None
        loads = await asyncio.gather(*(_calls_running(e) for e in self.engines))
        ready = [(load, i) for i, load in enumerate(loads) if load is not None]
        return self.engines[min(ready)[1]] if ready else None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as the orchestrator sees it. All replicas are alike; `kv_tokens` is of one replica."""

    name: str
    engines: tuple[Engine, ...]
    tokenizer: Tokenizer
    defaults: ModelDefaults
    context_tokens: int
    kv_tokens: int
    gauge: Gauge
    scorer: Scorer | None = None
    """Who says how promising a path of this model is."""
    judge: JudgeModel | None = None
    """Who judges finished answers of this model by reading them."""
    thinking: ThinkingMarkers | None = None
    """How it marks a thinking section, for models that write one."""
    step_ends: tuple[str, ...] = ("\n\n",)
    """Strings that end a step of its reasoning."""
    step_tokens: int = 512
    """The most tokens of one step."""
    created: int = 0

    async def pick(self) -> Engine | None:
        """The replica that is ready and has the fewest calls running; None when none is ready."""
        return await Replicas(self.engines).pick()

    async def ready(self) -> bool:
        """Whether any replica can serve."""
        return any(await asyncio.gather(*(e.ready() for e in self.engines)))


async def _calls_running(engine: Engine) -> int | None:
    """None when the replica is not ready."""
    try:
        return (await engine.load()).running if await engine.ready() else None
    except EngineError:
        return None
