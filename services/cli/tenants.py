"""`pondera tenants`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from guards.budget import Budget
from guards.embedded import EmbeddedStoreError
from guards.ledger import Ledger
from guards.store import StoreClient, StoreUnavailable
from guards.tenants import Tenant, TenantExists, TenantStore, TooMany
from orchestrator.deployment import open_store
from services.cli.options import Config, StateDir, fail, settings_or_exit

T = TypeVar("T")


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


Limit = Annotated[int | None, typer.Option(min=0, help="Tokens; absent is no limit, 0 suspends the tenant.")]
Allowed = Annotated[OnOff, typer.Argument(help="on or off.")]
Name = Annotated[str, typer.Argument(help="The tenant's name.")]


def build() -> typer.Typer:
    app = typer.Typer(help="Tenants, their budgets and API keys.", no_args_is_help=True)

    @app.command()
    def add(
        name: Name,
        minute: Limit = None,
        day: Limit = None,
        month: Limit = None,
        config: Config = None,
        state_dir: StateDir = None,
    ) -> None:
        """Add a tenant and print its first API key, which is shown this once."""

        async def work(store: StoreClient) -> str:
            return (await TenantStore(store).add(name, Budget(minute, day, month)))[1]

        print(_run(config, state_dir, work))

    @app.command("list")
    def list_(config: Config = None, state_dir: StateDir = None) -> None:
        """Tenants with their limits, and what they used and hold reserved."""

        async def work(store: StoreClient) -> None:
            tenants, ledger, after = TenantStore(store), Ledger(store), ""
            while page := await tenants.list(after=after):
                for tenant in page:
                    usage = await ledger.usage(tenant.id, tenant.budget)
                    parts = [
                        f"{w} {u.used}+{u.reserved}/{'-' if u.limit is None else u.limit}"
                        for w, u in usage.items()
                    ]
                    code = "  code on" if tenant.allow_code else ""
                    print(f"{tenant.name}  {tenant.id}  {'  '.join(parts)}{code}")
                after = page[-1].name

        _run(config, state_dir, work)

    @app.command("set-budget")
    def set_budget(
        name: Name,
        minute: Limit = None,
        day: Limit = None,
        month: Limit = None,
        config: Config = None,
        state_dir: StateDir = None,
    ) -> None:
        """Replace a tenant's limits by those given; the others are lifted."""

        async def work(store: StoreClient) -> None:
            tenants = TenantStore(store)
            await tenants.set_budget((await _find(tenants, name)).id, Budget(minute, day, month))

        _run(config, state_dir, work)

    @app.command("allow-code")
    def allow_code(name: Name, allowed: Allowed, config: Config = None, state_dir: StateDir = None) -> None:
        """Say whether code that a model wrote may be run for a tenant, in the sandbox; off at first."""

        async def work(store: StoreClient) -> None:
            tenants = TenantStore(store)
            await tenants.set_allow_code((await _find(tenants, name)).id, allowed is OnOff.ON)

        _run(config, state_dir, work)

    @app.command()
    def remove(name: Name, config: Config = None, state_dir: StateDir = None) -> None:
        """Remove a tenant and all its keys."""

        async def work(store: StoreClient) -> None:
            tenants = TenantStore(store)
            await tenants.remove((await _find(tenants, name)).id)

        _run(config, state_dir, work)

    @app.command("add-key")
    def add_key(name: Name, config: Config = None, state_dir: StateDir = None) -> None:
        """Print another API key of a tenant, which is shown this once."""

        async def work(store: StoreClient) -> str:
            tenants = TenantStore(store)
            return await tenants.add_key((await _find(tenants, name)).id)

        print(_run(config, state_dir, work))

    @app.command()
    def keys(name: Name, config: Config = None, state_dir: StateDir = None) -> None:
        """A tenant's keys: ids and dates."""

        async def work(store: StoreClient) -> None:
            tenants = TenantStore(store)
            for key in await tenants.list_keys((await _find(tenants, name)).id):
                print(f"{key.id}  {key.created_at:%Y-%m-%d %H:%M}")

        _run(config, state_dir, work)

    @app.command("revoke-key")
    def revoke_key(name: Name, key_id: str, config: Config = None, state_dir: StateDir = None) -> None:
        """Make a key useless at once."""

        async def work(store: StoreClient) -> None:
            tenants = TenantStore(store)
            if not await tenants.revoke_key((await _find(tenants, name)).id, key_id):
                raise LookupError(f"{name} has no key {key_id}")

        _run(config, state_dir, work)

    return app


async def _find(tenants: TenantStore, name: str) -> Tenant:
    tenant = await tenants.by_name(name)
    if tenant is None:
        raise LookupError(f"there is no tenant named {name}")
    return tenant


def _run(config: Path | None, state_dir: Path | None, work: Callable[[StoreClient], Awaitable[T]]) -> T:
    settings = settings_or_exit(config, {"state_dir": state_dir})

    async def inside() -> T:
        async with open_store(settings) as store:
            return await work(store)

    try:
        return asyncio.run(inside())
    except (LookupError, ValueError, TenantExists, TooMany, StoreUnavailable, EmbeddedStoreError) as e:
        fail(str(e))
