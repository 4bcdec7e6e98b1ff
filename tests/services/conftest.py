from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from guards.budget import Budget
from guards.embedded import EmbeddedValkey
from guards.store import StoreClient, connect
from support.site import Site, serve
from support.world import answers, scripted_model

Open = Callable[..., AbstractAsyncContextManager[Site]]


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
def open_site(store: StoreClient) -> Open:
    """Opens a site: texts of the model, `budget`, `limits`, and options of `scripted_model`."""

    def build(
        *texts: str,
        budget: Budget | None = None,
        limits: dict[str, Any] | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[Site]:
        model = scripted_model(answers(*texts), **options)
        return serve(store, [model], budget or Budget(), **(limits or {}))

    return build
