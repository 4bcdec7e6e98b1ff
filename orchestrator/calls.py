"""One engine call in flight, as the runner keeps it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from engines.protocol import Engine
from orchestrator.path_text import Piece
from search import contract


@dataclass(slots=True)
class RunningCall:
    """State of a call between its start and its end.

    Args:
        worst: charged tokens it may cost at most, those it was charged at its start left out.
        path_tokens: tokens on the path that it continues; 0 for a call that is no generation.
        piece: the text that it writes; None for a call that is no generation.
        received: tokens that have come.
        cancelled: what still comes is counted but no longer told to the search.
    """

    call: contract.Call
    worst: int
    span: Span
    path_tokens: int
    piece: Piece | None
    received: int = 0
    cancelled: bool = False
    engine: Engine | None = None
    task: asyncio.Task[None] | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def outstanding(self) -> int:
        """Charged tokens it may still cost."""
        return max(0, self.worst - self.received)
