from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.collector import Collector, collecting
from support.live import Live, live


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as c:
        yield c


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Live]:
    """The default server with both models, exporting its traces."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with live(tmp_path_factory.mktemp("server"), env=env) as running:
        yield running


@pytest.fixture
def fresh_key(server: Live, request: pytest.FixtureRequest) -> Iterator[str]:
    """The key of a tenant of this test's own, without limits."""
    name = f"t-{abs(hash(request.node.nodeid)) % 10**10}"
    yield server.pondera("tenants", "add", name)
    server.pondera("tenants", "remove", name)
