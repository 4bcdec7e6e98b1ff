from __future__ import annotations

import asyncio
import logging

import pytest

from guards import keys
from guards.budget import Budget
from guards.store import StoreClient
from guards.tenants import TenantExists, TenantStore, TooMany, UnknownTenant


@pytest.fixture
def tenants(client: StoreClient) -> TenantStore:
    return TenantStore(client)


async def test_a_tenant_comes_back_as_it_was_added(tenants: TenantStore) -> None:
    tenant, _ = await tenants.add("acme", Budget(minute=10, day=0, month=None))
    assert await tenants.get(tenant.id) == tenant
    assert await tenants.by_name("acme") == tenant
    assert await tenants.get("t0") is None
    assert await tenants.by_name("nobody") is None


async def test_a_key_authenticates_its_tenant_and_nothing_else_does(tenants: TenantStore) -> None:
    acme, acme_key = await tenants.add("acme", Budget())
    other, other_key = await tenants.add("other", Budget())
    assert await tenants.authenticate(acme_key) == acme
    assert await tenants.authenticate(other_key) == other
    right, wrong = keys.parse(acme_key), keys.parse(other_key)
    assert right is not None and wrong is not None
    assert await tenants.authenticate(keys.ApiKey(right.id, wrong.secret).reveal()) is None
    assert await tenants.authenticate(keys.new_key().reveal()) is None
    assert await tenants.authenticate("") is None
    assert await tenants.authenticate("pnd_" + "x" * 10**6) is None


async def test_an_unknown_key_id_is_compared_like_a_wrong_secret(
    tenants: TenantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str | None] = []
    real = keys.matches

    def spy(key: keys.ApiKey, digest: str | None) -> bool:
        stored.append(digest)
        return real(key, digest)

    monkeypatch.setattr(keys, "matches", spy)
    assert await tenants.authenticate(keys.new_key().reveal()) is None
    assert stored == [None]


async def test_the_store_never_sees_a_secret(
    tenants: TenantStore, client: StoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tenant, raw = await tenants.add("acme", Budget())
    more = await tenants.add_key(tenant.id)
    assert await tenants.authenticate(more) == tenant
    stored = str([await client.hgetall(key) for key in await client.keys("*:keys*")])
    for text in (raw, more):
        key = keys.parse(text)
        assert key is not None
        assert key.id in stored
        assert key.secret not in stored + caplog.text + repr(tenant)


async def test_a_name_is_taken_once_even_by_concurrent_adds(
    tenants: TenantStore, client: StoreClient
) -> None:
    results = await asyncio.gather(
        *(tenants.add("acme", Budget()) for _ in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, TenantExists) for result in results) == 19
    assert len(await tenants.list()) == 1
    assert await client.hlen("pondera:{registry}:keys") == 1


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a b", "ä", "a" * 64, "a\n", "{a}"])
async def test_a_bad_name_is_refused(tenants: TenantStore, name: str) -> None:
    with pytest.raises(ValueError, match="tenant name"):
        await tenants.add(name, Budget())


async def test_listing_pages_through_all_tenants_by_name(tenants: TenantStore) -> None:
    names = [f"n{i:02}" for i in range(25)]
    for name in reversed(names):
        await tenants.add(name, Budget())
    seen: list[str] = []
    while page := await tenants.list(after=seen[-1] if seen else "", limit=10):
        assert len(page) <= 10
        seen += [tenant.name for tenant in page]
    assert seen == names
    with pytest.raises(ValueError, match="page"):
        await tenants.list(limit=10**6)


async def test_a_new_budget_holds_and_an_unknown_tenant_gets_none(tenants: TenantStore) -> None:
    tenant, raw = await tenants.add("acme", Budget())
    changed = await tenants.set_budget(tenant.id, Budget(day=5))
    assert changed.budget == Budget(day=5)
    assert await tenants.authenticate(raw) == changed
    with pytest.raises(UnknownTenant):
        await tenants.set_budget("t0", Budget())


async def test_keys_are_added_listed_and_revoked_one_by_one(tenants: TenantStore) -> None:
    tenant, first = await tenants.add("acme", Budget())
    stranger, foreign = await tenants.add("other", Budget())
    second = await tenants.add_key(tenant.id)
    first_key, second_key, foreign_key = (keys.parse(raw) for raw in (first, second, foreign))
    assert first_key and second_key and foreign_key
    assert [info.id for info in await tenants.list_keys(tenant.id)] == [first_key.id, second_key.id]
    assert await tenants.revoke_key(tenant.id, first_key.id)
    assert not await tenants.revoke_key(tenant.id, first_key.id)
    assert not await tenants.revoke_key(tenant.id, foreign_key.id)
    assert await tenants.authenticate(first) is None
    assert await tenants.authenticate(second) == tenant
    assert await tenants.authenticate(foreign) == stranger
    with pytest.raises(UnknownTenant):
        await tenants.add_key("t0")


async def test_removing_a_tenant_leaves_nothing_of_it(tenants: TenantStore, client: StoreClient) -> None:
    tenant, raw = await tenants.add("acme", Budget())
    more = await tenants.add_key(tenant.id)
    assert await tenants.remove(tenant.id)
    assert not await tenants.remove(tenant.id)
    assert await tenants.authenticate(raw) is None
    assert await tenants.authenticate(more) is None
    assert await client.keys("*") == []
    again, _ = await tenants.add("acme", Budget())
    assert again.id != tenant.id


async def test_tenants_and_keys_are_bounded(client: StoreClient) -> None:
    tenants = TenantStore(client, max_tenants=1, max_keys=2)
    tenant, _ = await tenants.add("acme", Budget())
    with pytest.raises(TooMany):
        await tenants.add("other", Budget())
    await tenants.add_key(tenant.id)
    with pytest.raises(TooMany):
        await tenants.add_key(tenant.id)


async def test_all_registry_keys_lie_in_one_hash_slot(tenants: TenantStore, client: StoreClient) -> None:
    await tenants.add("acme", Budget())
    assert all(str(key).startswith("pondera:{registry}:") for key in await client.keys("*"))


@pytest.mark.parametrize("limit", [-1, 10**15 + 1, True, 1.5, "1"])
def test_a_budget_takes_only_sensible_integers(limit: int) -> None:
    with pytest.raises((ValueError, TypeError)):
        Budget(day=limit)
