"""A model without weights: characters for tokens, and a scripted engine that answers by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engines.protocol import EngineInfo
from engines.scripted import Behaviour, ScriptedEngine
from orchestrator.catalog import ModelDefaults, ServedModel
from orchestrator.gauge import Gauge
from orchestrator.outcome import Outcome
from orchestrator.verifiers.generative import GenerativeReward, ProcessReward
from search.extract import ThinkingMarkers

EOS = 0
JUDGE, RIGHT, WRONG = 1, 2, 3


class CharTokenizer:
    """One token per character (its code point); 0 ends a turn. System messages come first, in brackets."""

    eos_ids: tuple[int, ...] = (EOS,)

    def __init__(self, drops_system: bool = False) -> None:
        self._drops_system = drops_system

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        text = ""
        for m in messages:
            if m["role"] == "system":
                text += "" if self._drops_system else f"[{m['content']}]"
            else:
                text += f"{m['role'][0]}:{m['content']}\n"
        return tuple(map(ord, text + "a:"))

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def encode_turn(self, content: str) -> tuple[int, ...]:
        return (EOS, *map(ord, f"u:{content}\na:"))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(chr(i) for i in ids if i > WRONG)


def answers(*texts: str) -> Callable[[tuple[int, ...], int | None], list[int]]:
    """A script: the texts in turn, each with its end of turn, in the order in which prompts come."""
    turn = iter(range(1 << 30))

    def script(_: tuple[int, ...], __: int | None) -> list[int]:
        return [*map(ord, texts[next(turn) % len(texts)]), EOS]

    return script


def scripted_model(
    script: Callable[[tuple[int, ...], int | None], Sequence[int]],
    *,
    score: Callable[[tuple[int, ...], tuple[int, ...]], Sequence[float]] | None = None,
    behave: Callable[[Any, int], Behaviour] | None = None,
    context_tokens: int = 512,
    kv_tokens: int = 8192,
    scorable: bool = True,
    drops_system: bool = False,
    step_ends: tuple[str, ...] = ("\n\n",),
    thinking: ThinkingMarkers | None = None,
    name: str = "toy",
) -> tuple[ServedModel, ScriptedEngine]:
    tokenizer = CharTokenizer(drops_system)
    info = EngineInfo(name, "scripted", "1", "cpu", "float32", context_tokens, kv_tokens, 64)
    engine = ScriptedEngine(
        script, score=score, behave=behave, decode=tokenizer.decode, eos_ids=(EOS,), info=info
    )
    reward = ProcessReward((JUDGE,), RIGHT, WRONG, frozenset({EOS, ord("\n")}))
    model = ServedModel(
        name=name,
        engines=(engine,),
        tokenizer=tokenizer,
        defaults=ModelDefaults(max_new_tokens=64, temperature=0.8),
        context_tokens=context_tokens,
        kv_tokens=kv_tokens,
        gauge=Gauge(64, kv_tokens),
        scorer=GenerativeReward(reward) if scorable else None,
        step_ends=step_ends,
        thinking=thinking,
    )
    return model, engine


class Noted:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.refused: list[tuple[str, str]] = []
        self.calls: list[tuple[str, str, float | None]] = []

    def on_call(self, model: str, kind: str, added_s: float | None) -> None:
        self.calls.append((model, kind, added_s))

    def on_outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def on_refused(self, model: str, code: str) -> None:
        self.refused.append((model, code))


def memory_tracer() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter
