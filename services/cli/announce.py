"""What a server says once it listens: its URL, a key on the first start, and a line to try it with."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from guards.budget import Budget
from guards.tenants import TenantExists, TenantStore
from orchestrator.settings import Settings, SettingsError, load

FIRST_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Door:
    """How to get in. Without a key, `tenant` is one that another key can be made for."""

    tenant: str
    key: str | None


async def open_door(tenants: TenantStore) -> Door:
    """On the first start, add the tenant `default` with a key; later, find a tenant, since no key is kept.

    Raises:
        StoreUnavailable: the store is away.
    """
    if not (known := await tenants.list(limit=1)):
        try:
            return Door(FIRST_TENANT, (await tenants.add(FIRST_TENANT, Budget()))[1])
        except TenantExists:  # another server on the same store was first
            return Door(FIRST_TENANT, None)
    first = await tenants.by_name(FIRST_TENANT)
    return Door(known[0].name if first is None else first.name, None)


def url_of(host: str, port: int) -> str:
    """The URL of an address; IPv6 ones get their brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announcement(settings: Settings, config: Path | None, port: int, door: Door) -> str:
    """The lines to print.

    Args:
        config: the settings file that the server was started with.
        port: the one that it listens on.
    """
    url = url_of(settings.host, port)
    if door.key is None:
        another = f"The API key was shown on the first start; for another: {_add_key(settings, config, door)}"
    else:
        another = f"API key of the tenant '{door.tenant}' (shown this once): {door.key}"
    model = next(m.name for m in settings.models if m.role == "generate")
    query = {"model": model, "query": "Compute (47+38)*3-29.", "effort": "high", "seed": 3}
    return (
        f"\nPondera listens on {url}\n{another}\n\n"
        f'  curl -s {url}/v1/reason -H "Authorization: Bearer {door.key or "$PONDERA_API_KEY"}" \\\n'
        f"    -H 'Content-Type: application/json' -d '{json.dumps(query)}'\n"
    )


def _add_key(settings: Settings, config: Path | None, door: Door) -> str:
    """The command that makes a key in this server's own store."""
    words = [Path(sys.argv[0]).name, "tenants", "add-key", door.tenant]
    if config is not None:
        words += ["--config", str(config)]
    if settings.state_dir != Settings.model_fields["state_dir"].default:
        words += ["--state-dir", str(settings.state_dir)]
    command = shlex.join(words)
    # The URL may hold a password, so it is not shown.
    return command if _finds_store(settings, config) else f"PONDERA_REDIS_URL=… {command}"


def _finds_store(settings: Settings, config: Path | None) -> bool:
    """Whether that command, run in the same environment, would use the same external store or none."""
    try:
        return load(config).redis_url == settings.redis_url
    except SettingsError:
        return settings.redis_url is None
