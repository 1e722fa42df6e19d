"""``connect``: opens a store, from a URL or a client of your own, as ``Locks``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, final

import anyio

from aiorwlock_remote import registry
from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote._util.random_ids import discard_random_ids
from aiorwlock_remote._util.threads import thread_refused, threads_forbidden
from aiorwlock_remote.core.names import check_prefix
from aiorwlock_remote.core.text import check_str
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from aiorwlock_remote.locks.acquisition import SingleEntry
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.locks.observers import (
    Observer,
    check_observers,
    observe_store,
)
from aiorwlock_remote.locks.options import Options, check_count
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports import (
    Backend,
    Capability,
    EventLoop,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.registry import Client
from aiorwlock_remote.runtime.event_loop import TaskEventLoop, current_event_loop
from aiorwlock_remote.runtime.store_client import StoreClient


def connect(
    store: str | Backend | Client,
    *,
    prefix: str = "",
    connect_timeout: float = 5.0,
    fence_memory: float = 3600.0,
    min_replicas: int = 0,
    wake: str = "",
    observers: Sequence[Observer] = (),
    **options: Unpack[OptionArgs],
) -> Connecting:
    """Open the locks of a store: ``await`` the result, or use it in ``async with``.

    If the caller is cancelled, nothing stays open.

    Args:
        store: a URL (``memory://``, ``sqlite:///path``, … with options as its query);
            a client of your own: of redis-py or valkey-py, an ``AsyncEngine``, a pool
            of asyncpg or python-oracledb, a session of Cassandra; or a ``Backend``
            around a client, which has options.
        prefix: put before every resource type; also as ``?prefix=`` in the URL. With
            ``prefix="shop-"``, ``mutex("web", 1)`` is the same lock as
            ``mutex("shop-web", 1)`` without a prefix.
        connect_timeout: seconds the store may take to answer; importing its driver does
            not count.
        fence_memory: seconds after its last use for which a resource's last fence is
            kept, so that the next is greater.
        min_replicas: (Redis) how many replicas have to acknowledge a grant in time;
            else it is given back, and ``BackendUnavailable`` raised. A renewal that
            fewer have does not count.
        wake: (Cassandra, MariaDB, MySQL, Oracle) URL of a Redis or PostgreSQL server
            over which clients hint to each other that a lock may be free, so that
            waiters need not poll for that; also as ``?wake=`` in the URL. Nothing
            depends on the hints: without them waiters poll.
        observers: called with every request for a lock and its outcome, for metrics.
        options: the defaults of all locks; see ``OptionArgs``.

    Raises:
        ConfigurationError: a URL, a scheme, an option or a file is not valid.
        BackendUnavailable: the store does not answer within ``connect_timeout``.
        Unsupported: the store is not fit for locks (version, permission, schema).
    """
    check_seconds("connect_timeout", connect_timeout, endless=False)
    check_seconds("fence_memory", fence_memory, endless=False)
    check_count("min_replicas", min_replicas, least=0)
    settings = StoreSettings(
        client_id="",
        prefix=check_prefix(prefix),
        connect_timeout=connect_timeout,
        fence_memory=fence_memory,
        min_replicas=min_replicas,
    )
    resolved = Options().but(options)
    check_str("wake", wake)
    given = store if isinstance(store, str) else registry.wrap(store)
    return Connecting(given, settings, wake, resolved, check_observers(observers))


@final
class Connecting:
    """The result of ``connect``: ``await`` it for ``Locks``, or use ``async with``."""

    def __init__(
        self,
        store: str | Backend,
        settings: StoreSettings,
        wake: str,
        options: Options,
        observers: tuple[Observer, ...],
    ) -> None:
        self._store = store
        self._settings = settings
        self._wake = wake
        self._options = options
        self._observers = observers
        self._inside = SingleEntry("connect(…)")
        self._locks: Locks | None = None

    if not TYPE_CHECKING:  # type checkers find the missing `await` by themselves

        def __getattr__(self, name: str) -> NoReturn:
            # If a method of ``Locks`` is used, the `await` was forgotten.
            hint = " before `await`, or `async with`" if hasattr(Locks, name) else ""
            message = f"connect(…) has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)

    def __await__(self) -> Generator[Any, Any, Locks]:
        return self._open().__await__()

    async def __aenter__(self) -> Locks:
        with self._inside:
            self._locks = await self._open()
        return self._locks

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        assert self._locks is not None
        locks, self._locks = self._locks, None
        self._inside.left()
        await locks.__aexit__(*exc_info)

    async def _open(self, event_loop: TaskEventLoop | None = None) -> Locks:
        # Random bytes that were read before are dropped: a clone of this process (a
        # snapshot that is started more than once) would have the same.
        discard_random_ids()
        # Now, not at `connect`: a server may have forked since, and each child is a
        # process of its own to the store.
        client_id, prefix = secrets.token_hex(8), self._prefix
        settings = replace(self._settings, client_id=client_id, prefix=prefix)
        loop = event_loop or current_event_loop()
        client = StoreClient(loop, settings)
        # Imports are no fault of the store: of 125 processes started at once on a small
        # host, each needs more than `connect_timeout` for them (`test_connecting.py`).
        opening = self._opening(loop, client.queues.wake, settings)
        with anyio.move_on_after(settings.connect_timeout) as scope:
            try:
                store = await opening
            except RuntimeError as exc:  # the loop's own threads, too: names of hosts
                if not threads_forbidden(exc):
                    raise
                raise thread_refused(exc) from exc
        if scope.cancelled_caught:
            raise BackendUnavailable(
                what=f"the store did not answer in {settings.connect_timeout:g} s"
            )
        replicates = Capability.REPLICAS in store.capabilities
        if settings.min_replicas and not replicates:
            await store.aclose()
            raise ConfigurationError(what="min_replicas: this store knows no replicas")
        client.use(store)
        observe_store(self._observers, client)
        return Locks(Session(client, self._observers), self._options, self._where)

    @property
    def _where(self) -> str:
        if isinstance(self._store, str):
            return str(parse(self._store))
        return type(self._store).__name__

    @property
    def _prefix(self) -> str:
        given = self._settings.prefix
        if not isinstance(self._store, str):
            return given
        return check_prefix(parse(self._store).without_prefix(given)[1])

    def _opening(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> Awaitable[StoreBase]:
        if not isinstance(self._store, str):
            if isinstance(self._store, os.PathLike) or not hasattr(self._store, "open"):
                kind = type(self._store).__name__
                raise ConfigurationError(
                    what=f"a store is a URL, a client or a Backend, not {kind}",
                    hint="a file is sqlite:///path",
                )
            opening, channel = self._store.open, self._wake
        else:
            address, _ = parse(self._store).without_prefix(settings.prefix)
            address, channel = address.without_wake(self._wake)
            opening = partial(registry.find(address.scheme), address)
        open_store = partial(opening, loop, wake, settings)
        if not channel:
            return open_store()
        return registry.with_hints(channel, open_store, loop, settings)


async def open_in(event_loop: TaskEventLoop, connecting: Connecting) -> Locks:
    """Open a ``Locks`` that uses this adapter of the running loop."""
    return await connecting._open(event_loop)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file
