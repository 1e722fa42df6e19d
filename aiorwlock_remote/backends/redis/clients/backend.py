"""``RedisBackend``: locks at the server that a client of the user's is made for."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, final

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.store import RedisStore


class AsyncClient(Protocol):
    """``redis.asyncio.Redis`` or ``valkey.asyncio.Valkey``, as far as we need it."""

    @property
    def connection_pool(self) -> Any:  # noqa: ANN401 - of either library
        """Knows how connections are made."""


@final
class RedisBackend:
    """Takes the place of a URL: ``connect(RedisBackend(client))``.

    ``client`` is a ``redis.asyncio.Redis`` (redis-py 6 or later) or a
    ``valkey.asyncio.Valkey``, also one made by ``Sentinel.master_for``. It is asked how
    connections are made, and nothing else: locks use connections of their own, made the
    same way but without retries, and outside of the client's pool. It is never closed
    here, and may be closed while locks are in use. One backend serves any number of
    ``connect``. asyncio only.
    """

    def __init__(self, client: AsyncClient) -> None:
        """No I/O.

        Raises:
            ConfigurationError: it is not such a client: a cluster's, one that blocks,
                one of Sentinel's replicas.
        """
        self._client = client  # kept: a pool of Sentinel's must not vanish
        self._pool: Any = _checked(client)

    def __repr__(self) -> str:
        """Without the client, whose ``repr`` may show its password."""
        return f"<RedisBackend of {_kind(self._client)}>"

    def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Awaitable[RedisStore]:
        """As ``Opener``."""
        trio = sys.modules.get("trio")  # never imported for asyncio's sake
        if trio is not None and trio.lowlevel.in_trio_run():
            raise ConfigurationError(
                what=f"{_kind(self._client)} works on asyncio only",
                hint="on trio, give connect() a redis:// URL",
            )
        try:
            from aiorwlock_remote.backends.redis import (  # noqa: PLC0415 - it needs hiredis
                store,
            )
            from aiorwlock_remote.backends.redis.clients.connections import (  # noqa: PLC0415 - likewise
                client_connections,
            )
        except ImportError as exc:
            raise ConfigurationError(
                what=f"RedisBackend needs {exc.name}, which is not installed",
                hint="pip install 'aiorwlock-remote[redis]'",
            ) from exc

        async def opened() -> RedisStore:
            options, lines = client_connections(self._pool, settings.connect_timeout)
            opened = store.RedisStore(options, host, bell, settings, lines)
            await opened.open()
            return opened

        return opened()


def _checked(client: object) -> object:
    """Its pool.

    Raises:
        ConfigurationError: it is no client that we can use.
    """
    kind = _kind(client)
    if hasattr(client, "nodes_manager"):
        raise ConfigurationError(
            what=f"{kind} is a client of a cluster",
            hint="RedisBackend is for one server, or Sentinel's primary",
        )
    if hasattr(client, "master_for"):
        raise ConfigurationError(
            what=f"{kind} is not a client", hint="RedisBackend(sentinel.master_for(…))"
        )
    pool = getattr(client, "connection_pool", None)
    made = getattr(pool, "connection_class", None)
    if not isinstance(made, type) or not isinstance(
        getattr(pool, "connection_kwargs", None), dict
    ):
        raise ConfigurationError(
            what=f"{kind} is not a client of redis-py or valkey-py",
            hint="RedisBackend(redis.asyncio.Redis(…))",
        )
    if not hasattr(made, "read_response") or not _is_async(made):
        raise ConfigurationError(
            what=f"{kind} blocks", hint="RedisBackend(redis.asyncio.Redis(…))"
        )
    if not getattr(pool, "is_master", True):
        raise ConfigurationError(
            what=f"{kind} reads from replicas", hint="use sentinel.master_for(…)"
        )
    return pool


def _is_async(made: type) -> bool:
    from inspect import iscoroutinefunction  # noqa: PLC0415 - slow, rarely needed

    return iscoroutinefunction(getattr(made, "connect", None))


def _kind(thing: object) -> str:
    kind = type(thing)
    return f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
