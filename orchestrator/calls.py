"""One engine call in flight, as the runner keeps it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from engines.detokenize import IncrementalDetokenizer
from engines.protocol import Chunk, Engine
from orchestrator.catalog import ServedModel
from search import contract
from search.tree import Tree


@dataclass(slots=True)
class RunningCall:
    """State of a call between its start and its end.

    Args:
        worst: charged tokens it may cost at most.
        path_tokens: tokens on the path that it continues.
        received: tokens that have come.
        cancelled: what still comes is counted but no longer told to the search.
    """

    call: contract.Call
    worst: int
    span: Span
    path_tokens: int
    detokenizer: IncrementalDetokenizer | None
    received: int = 0
    cancelled: bool = False
    engine: Engine | None = None
    task: asyncio.Task[None] | None = None
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls,
        call: contract.Call,
        worst: int,
        span: Span,
        model: ServedModel,
        tree: Tree,
        stop: tuple[str, ...],
    ) -> RunningCall:
        if not isinstance(call, contract.Generate):
            return cls(call, worst, span, tree.path_tokens(call.node), None)
        path = tree.path_ids(call.parent)
        return cls(call, worst, span, len(path), IncrementalDetokenizer(model.tokenizer, path, stop))

    @property
    def outstanding(self) -> int:
        """Charged tokens it may still cost."""
        return max(0, self.worst - self.received)

    def text_of(self, chunk: Chunk) -> str:
        """The text that a chunk adds, with what was held back when it is the last one."""
        if self.detokenizer is None:
            return ""
        text = self.detokenizer.push(chunk.token_ids)
        return text + self.detokenizer.flush() if chunk.finish is not None else text
