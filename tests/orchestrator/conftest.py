from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from guards.budget import Budget
from guards.embedded import EmbeddedValkey
from guards.ledger import Ledger
from guards.store import StoreClient, connect
from guards.tenants import Tenant, TenantStore


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedValkey(tmp_path_factory.mktemp("state"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[StoreClient]:
    client = connect(store_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def ledger(store: StoreClient) -> Ledger:
    return Ledger(store)


@pytest.fixture
async def tenant(store: StoreClient) -> Tenant:
    return (await TenantStore(store).add("acme", Budget()))[0]
