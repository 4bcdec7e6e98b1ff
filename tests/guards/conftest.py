from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from guards.embedded import EmbeddedValkey
from guards.ledger import Ledger
from guards.store import StoreClient, connect


class Clock:
    """The store's clock in milliseconds, moved by hand."""

    def __init__(self, start: int = 1_800_000_000_000) -> None:
        self.ms = start

    def __call__(self) -> int:
        return self.ms

    def advance(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedValkey(tmp_path_factory.mktemp("state"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[StoreClient]:
    client = connect(store_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that the test may kill."""
    server = EmbeddedValkey(tmp_path / "own")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(client: StoreClient, clock: Clock) -> Ledger:
    return Ledger(client, clock=clock)
