"""Prometheus metrics. Labels come from closed sets: served models, techniques, codes; never from text."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from orchestrator.catalog import ServedModel
from orchestrator.outcome import Outcome

_ADDED = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PHASES = ("prompt", "generated", "verifier", "after_stop", "prefill_fresh", "prefill_cached")


class Metrics:
    """The metrics of one server; also the orchestrator's observer."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._queries = Counter(
            "pondera_queries", "Queries ended", ["model", "technique", "status"], registry=registry
        )
        self._refused = Counter(
            "pondera_queries_refused", "Queries not taken", ["model", "code"], registry=registry
        )
        self._seconds = Histogram(
            "pondera_query_seconds", "From admission to the end", ["model", "technique"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "pondera_tokens", "Tokens by phase; charged = prompt + generated + verifier",
            ["model", "phase"], registry=registry,
        )  # fmt: skip
        self._added = Histogram(
            "pondera_engine_call_added_seconds", "Time of an engine call that was spent outside the engine",
            ["model", "kind"], buckets=_ADDED, registry=registry,
        )  # fmt: skip
        self._searches = Gauge("pondera_searches_running", "Searches running", ["model"], registry=registry)
        self._calls = Gauge(
            "pondera_engine_calls_running", "Engine calls running", ["model"], registry=registry
        )
        self._ready = Gauge(
            "pondera_engine_ready", "Whether a replica is ready", ["model"], registry=registry
        )

    def on_call(self, model: str, kind: str, added_s: float | None) -> None:
        if added_s is not None:
            self._added.labels(model, kind).observe(max(0.0, added_s))

    def on_outcome(self, outcome: Outcome) -> None:
        receipt = outcome.receipt
        self._queries.labels(receipt.model, receipt.technique, outcome.status).inc()
        self._seconds.labels(receipt.model, receipt.technique).observe(receipt.elapsed_ms / 1000)
        for phase in _PHASES:
            self._tokens.labels(receipt.model, phase).inc(getattr(receipt.tokens, phase))

    def on_refused(self, model: str, code: str) -> None:
        self._refused.labels(model, code).inc()

    def observe_models(self, ready: Mapping[str, bool], models: Mapping[str, ServedModel]) -> None:
        """Take the gauges' present values."""
        for name, model in models.items():
            self._searches.labels(name).set(model.gauge.searches)
            self._calls.labels(name).set(model.gauge.calls)
            self._ready.labels(name).set(ready[name])

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
