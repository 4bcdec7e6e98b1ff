"""The one way to reach the store: a Redis-protocol client whose failures are `StoreUnavailable`.

Works with Valkey and Redis, 7.0 or later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

_SCHEMES = ("redis", "rediss", "unix")
# Anything else in the query could switch off the bounds that `connect` sets.
_QUERY = ("db", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


class StoreUnavailable(Exception):
    """The store cannot be reached in time or cannot take the write; nothing is known of its effect."""


class StoreClient(Redis):
    """`redis.asyncio.Redis` that raises `StoreUnavailable` and never shows where or how it logs in."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with _translated():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> _StorePipeline:
        return _StorePipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class _StorePipeline(Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        with _translated():
            return await super().execute(raise_on_error)

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        with _translated():
            return await super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def connect(url: str, *, timeout_s: float = 2.0, max_connections: int = 32) -> StoreClient:
    """A client for the store at `url`; connects on first use. Close it with `await client.aclose()`.

    Commands are never retried here: the caller knows which are safe to repeat. A connection that was
    lost while it lay in the pool is replaced before use.

    Args:
        url: `redis://[[user]:password@]host[:port][/db]`, `rediss://…` (TLS) or
            `unix://[[user]:password@]/path[?db=n]`. Of query options only `db` and the TLS files are taken.
        timeout_s: most seconds for a connect, for a reply, and for a free connection of the pool.
        max_connections: most open connections; further commands wait for one.

    Raises:
        ValueError: malformed URL. The message does not repeat the URL.
    """
    if timeout_s <= 0 or max_connections < 1:
        raise ValueError("timeout_s and max_connections must be positive")
    _check_url(url)
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        # With RESP3 redis-py skips the check for connections that died in the pool.
        protocol=2,
        decode_responses=True,
    )
    client = StoreClient(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - the property raises on a bad port
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=False)]
    except ValueError:
        raise ValueError("malformed store URL") from None
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"the store URL must begin with one of {', '.join(s + '://' for s in _SCHEMES)}")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("a unix:// store URL needs a socket path")
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError("the store URL needs a host")
    if parts.scheme != "unix" and parts.path not in ("", "/") and not parts.path[1:].isdecimal():
        raise ValueError("the path of the store URL must be a database number")
    if refused := sorted({name for name in names if name not in _QUERY}):
        raise ValueError(f"the store URL has options that are not taken: {', '.join(refused)}")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
        raise StoreUnavailable(f"the store does not answer ({type(exc).__name__})") from exc
    except (OutOfMemoryError, ReadOnlyError) as exc:
        raise StoreUnavailable(f"the store takes no writes ({type(exc).__name__})") from exc
    except ResponseError as exc:
        # MISCONF: its append-only file cannot be written.
        if str(exc).startswith("MISCONF"):
            raise StoreUnavailable("the store takes no writes (its file cannot be written)") from exc
        raise
