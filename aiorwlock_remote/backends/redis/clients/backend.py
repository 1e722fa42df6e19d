"""``RedisBackend``: locks on the server of a user's own Redis or Valkey client."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, final

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.backends.redis.store import RedisStore


_ACCEPTED = "RedisBackend(redis.asyncio.Redis(…))"
# Its connections are made, shared and repeated inside of the library: locks could have
# none of their own, and would not know which command was sent twice.
_GLIDE = "give connect() a URL: valkey://host/0, valkeys:// or valkey+cluster://"


class AsyncClient(Protocol):
    """A client of ``redis.asyncio`` or ``valkey.asyncio``; only its pool is used."""

    @property
    def connection_pool(self) -> Any:  # noqa: ANN401 - of either library
        """The client's pool; only its connection class and settings are used."""


@final
class RedisBackend:
    """Backend on a user's client, in place of a URL: ``connect(RedisBackend(client))``.

    ``client`` is a ``redis.asyncio.Redis`` (redis-py 6 or later) or a
    ``valkey.asyncio.Valkey``, also one made by ``Sentinel.master_for``. Only its
    settings are used: locks have connections of their own, opened the same way but
    without retries, and outside of the client's pool. The client is never closed, and
    the user may close it while locks are in use. One backend serves any number of
    ``connect`` calls. It works on asyncio only.
    """

    def __init__(self, client: AsyncClient) -> None:
        """Read the client's settings, without any I/O.

        Raises:
            ConfigurationError: ``client`` blocks, reads replicas, or is a cluster's.
        """
        # Kept, so that a pool of Sentinel's is not garbage collected with its client.
        self._client = client
        self._pool: Any = _checked(client)

    def __repr__(self) -> str:
        # Not the client itself, whose repr may show its password.
        return f"<RedisBackend of {_kind(self._client)}>"

    def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> Awaitable[RedisStore]:
        """For ``connect``: return an awaitable that connects and returns the store.

        ``wake(resource, 0.0)`` is called in ``loop`` when a waiter for the resource may
        be granted now.
        """
        trio = sys.modules.get("trio")  # not imported for the sake of asyncio
        if trio is not None and trio.lowlevel.in_trio_run():
            raise ConfigurationError(
                what=f"{_kind(self._client)} works on asyncio only",
                hint="on trio, give connect() a redis:// URL",
            )
        try:
            from aiorwlock_remote.backends.redis import store  # noqa: PLC0415 - it needs hiredis
            from aiorwlock_remote.backends.redis.clients.connections import (  # noqa: PLC0415 - likewise
                client_connections,
            )
        except ImportError as exc:
            raise ConfigurationError(
                what=f"RedisBackend needs {exc.name}, which is not installed",
                hint="pip install 'aiorwlock-remote[redis]'",
            ) from exc

        # The imports above, which are slow, do not count towards connect_timeout: only
        # what is awaited does.
        async def opened() -> RedisStore:
            options, factory = client_connections(self._pool, settings.connect_timeout)
            options = replace(options, min_replicas=settings.min_replicas)
            opened = store.RedisStore(options, loop, wake, settings, factory)
            await opened.open()
            return opened

        return opened()


def _checked(client: object) -> object:
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
            hint=_GLIDE if kind.startswith("glide") else _ACCEPTED,
        )
    from inspect import iscoroutinefunction  # noqa: PLC0415 - slow, rarely needed

    is_async = iscoroutinefunction(getattr(made, "connect", None))
    if not hasattr(made, "read_response") or not is_async:
        raise ConfigurationError(what=f"{kind} blocks", hint=_ACCEPTED)
    if not getattr(pool, "is_master", True):
        raise ConfigurationError(
            what=f"{kind} reads from replicas", hint="use sentinel.master_for(…)"
        )
    return pool


def _kind(thing: object) -> str:
    kind = type(thing)
    return f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
