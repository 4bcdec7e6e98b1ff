from __future__ import annotations

import asyncio

import pytest

from guards.salt import cache_salt, load_or_create_secret
from guards.store import StoreClient, connect

SECRET = b"s" * 32


def test_case_63_salts_differ_by_tenant_and_by_server_and_are_stable() -> None:
    assert cache_salt(SECRET, "a") == cache_salt(SECRET, "a")
    assert cache_salt(SECRET, "a") != cache_salt(SECRET, "b")
    assert cache_salt(SECRET, "a") != cache_salt(b"t" * 32, "a")
    assert len(bytes.fromhex(cache_salt(SECRET, "a"))) == 16


def test_a_weak_secret_or_no_tenant_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        cache_salt(b"short", "a")
    with pytest.raises(ValueError, match="tenant"):
        cache_salt(SECRET, "")


async def test_all_processes_get_the_same_secret(client: StoreClient, store_url: str) -> None:
    other = connect(store_url)
    secrets = await asyncio.gather(*(load_or_create_secret(c) for c in [client, other] * 10))
    assert len(set(secrets)) == 1
    assert len(secrets[0]) == 32
    await other.aclose()


async def test_a_spoilt_secret_in_the_store_is_refused_and_not_shown(client: StoreClient) -> None:
    await client.set("pondera:{server}:cache-salt-secret", "spoilt")
    with pytest.raises(ValueError) as caught:
        await load_or_create_secret(client)
    assert "spoilt" not in str(caught.value)
