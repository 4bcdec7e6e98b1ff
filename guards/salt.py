"""Prefix-cache namespaces: one `cache_salt` per tenant, derived by the server and never taken from a client.

Engines mix the salt into the hash of a prompt's prefix, so that tenants cannot find out by timing what
another tenant has asked (the attack of CVE-2025-46570).
"""

from __future__ import annotations

import hmac
import re
import secrets

from guards.store import StoreClient

_SECRET_BYTES = 32
_SECRET_KEY = "pondera:{server}:cache-salt-secret"  # noqa: S105 - the name of a key, not a secret
_HEX = re.compile(rf"[0-9a-f]{{{2 * _SECRET_BYTES}}}")


def cache_salt(server_secret: bytes, tenant_id: str) -> str:
    """HMAC-SHA256 of the tenant id under the server secret: 128 bits as 32 hex characters.

    Raises:
        ValueError: the secret is shorter than 32 bytes or the tenant id is empty.
    """
    if len(server_secret) < _SECRET_BYTES:
        raise ValueError(f"the server secret must have at least {_SECRET_BYTES} bytes")
    if not tenant_id:
        raise ValueError("no tenant id")
    message = b"pondera cache_salt v1\0" + tenant_id.encode()
    return hmac.new(server_secret, message, "sha256").hexdigest()[:32]


async def load_or_create_secret(client: StoreClient) -> bytes:
    """The server secret, kept in the store: the same after restarts and in all processes.

    Raises:
        StoreUnavailable: the store does not answer.
        ValueError: what the store holds is no such secret.
    """
    await client.set(_SECRET_KEY, secrets.token_hex(_SECRET_BYTES), nx=True)
    stored = await client.get(_SECRET_KEY)
    if not isinstance(stored, str) or _HEX.fullmatch(stored) is None:
        raise ValueError(f"{_SECRET_KEY} in the store is not a secret")
    return bytes.fromhex(stored)
