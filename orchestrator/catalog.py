"""A served model: its replicas, tokenizer and verifier form, and what its running searches hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engines.protocol import Engine
from orchestrator.gauge import Gauge
from orchestrator.scoring import ProcessReward


class Tokenizer(Protocol):
    """What the orchestrator needs of a model's tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Sampling limits and temperature where the request names none."""

    max_new_tokens: int
    temperature: float


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
    process_reward: ProcessReward | None = None
    created: int = 0
    thinking: tuple[str, str] | None = field(default=None)
    """Open and close markers of a thinking section, for models that write one."""

    async def pick(self, prefer: Engine | None = None) -> Engine | None:
        """A replica that is ready: `prefer` if it is, so that siblings stay with their parent's KV."""
        order = [e for e in self.engines if e is not prefer]
        if prefer is not None:
            order.insert(0, prefer)
        elif len(order) > 1:
            loads = [(await e.load()).running if await e.ready() else 1 << 30 for e in order]
            order = [e for _, _, e in sorted(zip(loads, range(len(order)), order, strict=True))]
        for engine in order:
            if await engine.ready():
                return engine
        return None

    async def ready(self) -> bool:
        return await self.pick() is not None
