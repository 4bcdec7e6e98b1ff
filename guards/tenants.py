"""Tenants, their budgets and their API keys.

The registry lies in one hash slot (`pondera:{registry}:…`), so that adding and removing a tenant with its
name and keys is one atomic script on a cluster too. What a tenant spends lies elsewhere (`guards.ledger`)
and expires by itself; tenant ids are never reused, so it cannot fall to another tenant.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from guards import keys
from guards.budget import WINDOWS, Budget
from guards.scripts import load_script
from guards.store import StoreClient

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_TAG = "pondera:{registry}"
# Parts shared by the scripts, in the order of their KEYS.
_TENANTS, _NAMES, _ORDER, _KEYS = (f"{_TAG}:{part}" for part in ("tenants", "names", "order", "keys"))
_PAGE = 1000


class TenantExists(ValueError):
    """The name is taken."""


class UnknownTenant(LookupError):
    """No tenant has this id."""


class TooMany(ValueError):
    """The store holds as many tenants, or the tenant as many keys, as are allowed."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Someone who may send requests."""

    id: str
    name: str
    budget: Budget
    created_at: datetime
    allow_code: bool = False
    """Whether code that a model wrote may be run for it, in the sandbox."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key as far as it may be shown: never its secret or digest."""

    id: str
    created_at: datetime


class TenantStore:
    """The registry of tenants and keys. All methods raise `StoreUnavailable` when the store is away.

    Args:
        client: the store.
        max_tenants: most tenants.
        max_keys: most keys per tenant.
    """

    def __init__(self, client: StoreClient, *, max_tenants: int = 100_000, max_keys: int = 100) -> None:
        self._client = client
        self._max_tenants = max_tenants
        self._max_keys = max_keys
        self._add = client.register_script(load_script("tenant_add"))
        self._remove = client.register_script(load_script("tenant_remove", flags="allow-oom"))
        self._replace = client.register_script(load_script("tenant_replace", flags="allow-oom"))
        self._add_key = client.register_script(load_script("key_add"))
        self._revoke_key = client.register_script(load_script("key_revoke", flags="allow-oom"))
        self._find_key = client.register_script(load_script("key_find", flags="no-writes"))

    async def add(self, name: str, budget: Budget) -> tuple[Tenant, str]:
        """Add a tenant with its first key, in one step. Returns the key's text, which is kept nowhere.

        Raises:
            ValueError: the name does not match `[a-z0-9][a-z0-9-]{0,62}`.
            TenantExists: the name is taken.
            TooMany: there are `max_tenants` tenants.
        """
        if _NAME.fullmatch(name) is None:
            raise ValueError("a tenant name is 1 to 63 of a-z, 0-9 and -, and does not begin with -")
        tenant = Tenant(f"t{secrets.token_hex(8)}", name, budget, datetime.now(UTC))
        key = keys.new_key()
        reply = await self._add(
            keys=[_TENANTS, _NAMES, _ORDER, _KEYS, _keys_of(tenant.id)],
            args=[tenant.id, name, _encode(tenant), self._max_tenants, *_key_args(tenant.id, key)],
        )
        if reply == "exists":
            raise TenantExists(f"there is a tenant named {name}")
        if reply == "full":
            raise TooMany(f"there are {self._max_tenants} tenants already")
        return tenant, key.reveal()

    async def get(self, tenant_id: str) -> Tenant | None:
        """The tenant with this id, or None."""
        stored = await self._client.hget(_TENANTS, tenant_id)
        return None if stored is None else _decode(_text(stored))

    async def by_name(self, name: str) -> Tenant | None:
        """The tenant with this name, or None."""
        tenant_id = await self._client.hget(_NAMES, name)
        return None if tenant_id is None else await self.get(_text(tenant_id))

    async def list(self, *, after: str = "", limit: int = 100) -> Sequence[Tenant]:
        """A page of tenants in the order of their names.

        Args:
            after: the last name of the page before; "" for the first page.
            limit: most tenants on the page, 1..1000. A page that is not full need not be the last: tenants
                removed meanwhile are left out. An empty one is.
        """
        if not 1 <= limit <= _PAGE:
            raise ValueError(f"a page has 1..{_PAGE} tenants")
        start = f"({after}" if after else "-"
        while names := await self._client.zrangebylex(_ORDER, start, "+", 0, limit):
            ids = [i for i in await self._client.hmget(_NAMES, names) if i is not None]
            found = await self._client.hmget(_TENANTS, ids) if ids else []
            if tenants := [_decode(_text(stored)) for stored in found if stored is not None]:
                return tenants
            start = f"({_text(names[-1])}"
        return []

    async def set_budget(self, tenant_id: str, budget: Budget) -> Tenant:
        """Give a tenant another budget; it holds from the next reservation on.

        Raises:
            UnknownTenant: no tenant has this id.
        """
        return await self._change(tenant_id, budget=budget)

    async def set_allow_code(self, tenant_id: str, allow_code: bool) -> Tenant:
        """Say whether code that a model wrote may be run for a tenant; it holds from the next query on.

        Raises:
            UnknownTenant: no tenant has this id.
        """
        return await self._change(tenant_id, allow_code=allow_code)

    async def _change(self, tenant_id: str, **fields: Any) -> Tenant:
        # Of two changes at the same moment the later one stands. Only operators make any.
        tenant = await self.get(tenant_id)
        if tenant is None:
            raise UnknownTenant(tenant_id)
        tenant = replace(tenant, **fields)
        if not await self._replace(keys=[_TENANTS], args=[tenant_id, _encode(tenant)]):
            raise UnknownTenant(tenant_id)
        return tenant

    async def remove(self, tenant_id: str) -> bool:
        """Remove a tenant with its name and all its keys, in one step; False if there is none."""
        removed = await self._remove(
            keys=[_TENANTS, _NAMES, _ORDER, _KEYS, _keys_of(tenant_id)], args=[tenant_id]
        )
        return bool(removed)

    async def add_key(self, tenant_id: str) -> str:
        """Another key for a tenant. Returns its text, which is kept nowhere.

        Raises:
            UnknownTenant: no tenant has this id.
            TooMany: the tenant has `max_keys` keys.
        """
        key = keys.new_key()
        reply = await self._add_key(
            keys=[_TENANTS, _KEYS, _keys_of(tenant_id)],
            args=[tenant_id, self._max_keys, *_key_args(tenant_id, key)],
        )
        if reply == "unknown":
            raise UnknownTenant(tenant_id)
        if reply == "full":
            raise TooMany(f"the tenant has {self._max_keys} keys already")
        return key.reveal()

    async def list_keys(self, tenant_id: str) -> Sequence[KeyInfo]:
        """The keys of a tenant, oldest first; empty when there is no such tenant."""
        created = await self._client.hgetall(_keys_of(tenant_id))
        found = [KeyInfo(_text(key_id), datetime.fromisoformat(_text(at))) for key_id, at in created.items()]
        return sorted(found, key=lambda info: (info.created_at, info.id))

    async def revoke_key(self, tenant_id: str, key_id: str) -> bool:
        """Make a key of this tenant useless at once; False if it has no such key."""
        return bool(await self._revoke_key(keys=[_KEYS, _keys_of(tenant_id)], args=[key_id]))

    async def authenticate(self, raw_key: str) -> Tenant | None:
        """The tenant whose key this is, or None. Takes the same time for unknown ids and wrong secrets."""
        key = keys.parse(raw_key)
        if key is None:
            return None
        digest, stored = await self._find_key(keys=[_TENANTS, _KEYS], args=[key.id])
        if not keys.matches(key, digest or None) or not stored:
            return None
        return _decode(stored)


def _keys_of(tenant_id: str) -> str:
    return f"{_TAG}:keys-of:{tenant_id}"


def _key_args(tenant_id: str, key: keys.ApiKey) -> list[str]:
    return [key.id, f"{tenant_id}:{keys.digest(key)}", datetime.now(UTC).isoformat()]


def _text(value: bytes | str) -> str:
    assert isinstance(value, str)  # the client decodes all replies
    return value


def _encode(tenant: Tenant) -> str:
    budget = {window: tenant.budget.limit(window) for window in WINDOWS}
    return json.dumps(
        {
            "id": tenant.id,
            "name": tenant.name,
            "budget": budget,
            "created_at": tenant.created_at.isoformat(),
            "allow_code": tenant.allow_code,
        }
    )


def _decode(stored: str) -> Tenant:
    fields: dict[str, Any] = json.loads(stored)
    return Tenant(
        id=fields["id"],
        name=fields["name"],
        budget=Budget(**fields["budget"]),
        created_at=datetime.fromisoformat(fields["created_at"]),
        allow_code=bool(fields.get("allow_code", False)),
    )
