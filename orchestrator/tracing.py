"""Spans of one query: a root, and one child per engine call.

Attribute names follow OpenTelemetry's GenAI semantic conventions where they have one, else `pondera.*`.
No prompt or output text is ever put on a span.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from engines.protocol import Usage


class QueryTrace:
    """The spans of one query.

    Args:
        tracer: where spans go; a no-op tracer when telemetry is off.
        carrier: the client's trace headers (W3C), which become the parent of the root.
    """

    def __init__(self, tracer: Tracer, *, search_id: str, model: str, carrier: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._model = model
        parent = propagate.extract(dict(carrier)) if carrier else Context()
        self.root = tracer.start_span(
            f"reason {model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": model,
                "pondera.search.id": search_id,
            },
        )
        self._context = trace.set_span_in_context(self.root, parent)

    def call(self, kind: str, node: int) -> Span:
        """Start the span of one engine call; `kind` is `generate` or `score`."""
        return self._tracer.start_span(
            f"{kind} {self._model}",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "text_completion" if kind == "generate" else "score",
                "gen_ai.provider.name": "sglang",
                "gen_ai.request.model": self._model,
                "pondera.node": node,
            },
        )

    @staticmethod
    def headers(span: Span) -> dict[str, str]:
        """W3C headers that make the engine's own spans children of `span`; empty when it is not recorded."""
        if not span.is_recording():
            return {}
        out: dict[str, str] = {}
        propagate.inject(out, context=trace.set_span_in_context(span, Context()))
        return out

    @staticmethod
    def end_call(
        span: Span,
        *,
        usage: Usage | None,
        tokens: int,
        cancelled: bool,
        error: str | None,
        score: float | None,
    ) -> None:
        """End a call's span, whatever its end was."""
        if usage is not None:
            span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            span.set_attribute("pondera.tokens.cached", usage.cached_tokens)
            span.set_attribute("pondera.tokens.fresh", usage.prompt_tokens - usage.cached_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", tokens)
        span.set_attribute("pondera.cancelled", cancelled)
        if score is not None:
            span.set_attribute("pondera.score", score)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()

    def end(self, attributes: Mapping[str, str | int | float | bool], error: str | None) -> None:
        """End the root; all calls have ended by then."""
        for key, value in attributes.items():
            self.root.set_attribute(key, value)
        if error is not None:
            self.root.set_status(Status(StatusCode.ERROR, error))
        self.root.end()
