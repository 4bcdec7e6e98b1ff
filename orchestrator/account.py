"""What a run has to show for itself in the end: tokens, calls, faults."""

from __future__ import annotations

import time
from collections.abc import Callable

from engines.protocol import EngineRefused, Usage
from orchestrator import telling
from orchestrator.calls import RunningCall
from orchestrator.meter import Meter
from orchestrator.tracing import QueryTrace
from search import contract

_MOST_NOTES = 32


class RunAccount:
    """The account of one run.

    Args:
        on_call: as in `SearchRun`.
    """

    def __init__(
        self,
        prompt_tokens: int,
        trace: QueryTrace,
        on_call: Callable[[str, float | None], None] | None,
    ) -> None:
        self.meter = Meter(prompt_tokens)
        self.failures: list[str] = []
        """Reasons of failed calls, the first few."""
        self.disagreements = 0
        """Checks whose verifiers differed."""
        self.late_calls = 0
        """Calls whose ends had not been seen when the answer was due."""
        self.engine_lost = False
        """Whether a replica was lost under one of its calls."""
        self.refused: EngineRefused | None = None
        """The engine's refusal of the request's parameters, which holds for all samples."""
        self._trace = trace
        self._on_call = on_call

    def failed(self, reason: str) -> str:
        """A call failed; returns the reason."""
        self.meter.failed_calls += 1
        return self.note(reason)

    def note(self, reason: str) -> str:
        """Keep a reason for the receipt; returns it."""
        if len(self.failures) < _MOST_NOTES:
            self.failures.append(reason)
        return reason

    def ended(
        self,
        running: RunningCall,
        usage: Usage | None,
        engine_s: float | None,
        error: str | None,
        score: float | None = None,
    ) -> None:
        """A call has ended, well or badly."""
        generation = isinstance(running.call, contract.Generate)
        if generation:
            self.meter.generate_calls += 1
        else:
            self.meter.verifier_calls += 1
        if usage is not None:
            self.meter.prefilled(usage, generation=generation)
        if self._on_call:
            wall = time.monotonic() - running.started
            self._on_call(telling.kind_of(running.call), None if engine_s is None else wall - engine_s)
        self._trace.end_call(
            running.span,
            usage=usage,
            tokens=running.received,
            cancelled=running.cancelled,
            error=error,
            score=score,
        )
