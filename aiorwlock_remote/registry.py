"""URL scheme, or a user's client → backend, which is imported when it is used first.

Third parties register under the entry point group ``aiorwlock_remote.backends``: the
name is the scheme, the value ``module:open_store``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

import anyio

from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import (
    Backend,
    Capability,
    ChannelOpener,
    EventLoop,
    Opener,
    StoreBase,
    StoreSettings,
)

GROUP = "aiorwlock_remote.backends"

_REDIS = "aiorwlock_remote.backends.redis.store:open_store"
_REDIS_HINTS = "aiorwlock_remote.backends.redis.hints:open_channel"
_BUILT_IN = {
    "memory": "aiorwlock_remote.backends.memory:open_store",
    "file": "aiorwlock_remote.backends.files.store:open_store",
    "sqlite": "aiorwlock_remote.backends.sqlite.store:open_store",
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+cluster": _REDIS,
    "rediss+sentinel": _REDIS,
    "unix": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "valkey+cluster": _REDIS,
    "valkey+sentinel": _REDIS,
    "valkeys+cluster": _REDIS,
    "valkeys+sentinel": _REDIS,
    "etcd": "aiorwlock_remote.backends.etcd.store:open_store",
    "etcds": "aiorwlock_remote.backends.etcd.store:open_store",
    "oracle": "aiorwlock_remote.backends.oracle.store:open_store",
    "cassandra": "aiorwlock_remote.backends.cassandra.store:open_store",
    "postgresql": "aiorwlock_remote.backends.postgresql.store:open_store",
    "mariadb": "aiorwlock_remote.backends.mariadb.store:open_mariadb",
    "mysql": "aiorwlock_remote.backends.mariadb.store:open_mysql",
}
_CHANNELS = {
    **{name: _REDIS_HINTS for name, target in _BUILT_IN.items() if target == _REDIS},
    "postgresql": "aiorwlock_remote.backends.postgresql.hints:open_channel",
}
# Names of other libraries, for the hint.
_OTHER_NAMES = {"postgres": "postgresql"}
_EXTRAS = {
    "etcds": "etcd",
    "rediss": "redis",
    "unix": "redis",
    "valkey": "redis",
    "valkeys": "redis",
}


_WRAPPERS = {
    "redis": "aiorwlock_remote.backends.redis:RedisBackend",
    "valkey": "aiorwlock_remote.backends.redis:RedisBackend",
    "glide": "aiorwlock_remote.backends.redis:RedisBackend",
    "coredis": "aiorwlock_remote.backends.redis:RedisBackend",
    "asyncpg": "aiorwlock_remote.backends.postgresql:PostgresqlBackend",
    "psycopg_pool": "aiorwlock_remote.backends.postgresql:PostgresqlBackend",
    "oracledb": "aiorwlock_remote.backends.oracle:OracleBackend",
    "cassandra": "aiorwlock_remote.backends.cassandra:CassandraBackend",
}
"""Top-level package of a client's class, mapped to the backend that takes the client,
or says in its error what it takes."""
_ENGINES = {
    "postgresql": "aiorwlock_remote.backends.postgresql:PostgresqlBackend",
    "mariadb": "aiorwlock_remote.backends.mariadb:MariadbBackend",
    "mysql": "aiorwlock_remote.backends.mysql:MysqlBackend",
    "oracle": "aiorwlock_remote.backends.oracle:OracleBackend",
}
"""The same for engines of SQLAlchemy, by the name of their dialect."""


class RedisClient(Protocol):
    """A client of ``redis.asyncio`` or ``valkey.asyncio``."""

    @property
    def connection_pool(self) -> Any: ...  # noqa: ANN401 - of either library


class Engine(Protocol):
    """An ``AsyncEngine`` of SQLAlchemy."""

    @property
    def dialect(self) -> Any: ...  # noqa: ANN401 - SQLAlchemy's


class Pool(Protocol):
    """A pool of asyncpg, or an asyncio pool of python-oracledb."""

    @property
    def acquire(self) -> Any: ...  # noqa: ANN401 - of either library


class DriverSession(Protocol):
    """A session of cassandra-driver."""

    @property
    def execute_async(self) -> Any: ...  # noqa: ANN401 - the driver has no types


Client = RedisClient | Engine | Pool | DriverSession
"""A client, engine, pool or session of the user's, which ``connect`` takes."""


def wrap(store: object) -> Backend:
    """Return the backend of a user's client. No driver is imported: the client's class
    names its library. Return ``store`` itself if it is of none of the libraries
    that we know.

    Raises:
        ConfigurationError: the client cannot hold locks; the hint names what can.
    """
    kind = type(store)
    for parent in kind.__mro__:
        package = parent.__module__.partition(".")[0]
        if package in _WRAPPERS:
            return _wrapped(store, _WRAPPERS[package])
        if package == "sqlalchemy":
            return _engine(store)
        if package == "asyncmy":
            raise ConfigurationError(
                what="a pool of asyncmy does not say which server it is for",
                hint=f"{_named('mariadb')}, or {_named('mysql')}",
            )
    return cast("Backend", store)


def _engine(store: object) -> Backend:
    dialect = getattr(store, "dialect", None)
    if dialect is None:
        raise ConfigurationError(
            what=f"SQLAlchemy's {type(store).__name__} is not an engine",
            hint="connect(engine), the AsyncEngine that it was made with",
        )
    target = _ENGINES.get(dialect.name)
    if target is None:
        raise ConfigurationError(
            what=f"an engine for {dialect.name} cannot hold locks",
            hint="sqlite:///path" if dialect.name == "sqlite" else "give a URL",
        )
    return _wrapped(store, target)


def _wrapped(store: object, target: str) -> Backend:
    module, _, name = target.partition(":")
    make = getattr(import_module(module), name)
    try:
        return cast("Backend", make(store))
    except ConfigurationError as exc:
        hint = f"{exc.hint}; " if exc.hint else ""
        raise ConfigurationError(
            what=exc.what, hint=f"{hint}from {module} import {name}"
        ) from exc


def _named(dialect: str) -> str:
    module, _, name = _ENGINES[dialect].partition(":")
    return f"{name}(pool), from {module} import {name}"


def find(scheme: str) -> Opener:
    """Return the function that opens stores of a URL scheme.

    Raise ``ConfigurationError`` if no backend has the scheme, or several have, or its
    driver cannot be imported; the hint names the extra to install.
    """
    target = _BUILT_IN.get(scheme) or _foreign(scheme)
    return cast("Opener", _imported(scheme, target))


def find_channel(scheme: str) -> ChannelOpener:
    """Return the function that opens hint channels at servers of a URL scheme.

    Raise ``ConfigurationError`` if these servers carry no hints, or their driver cannot
    be imported.
    """
    target = _CHANNELS.get(scheme)
    if target is None:
        raise ConfigurationError(
            what=f"wake: {scheme}:// carries no hints",
            hint="redis:// (and all its variants) and postgresql:// do",
        )
    return cast("ChannelOpener", _imported(scheme, target))


def with_hints(
    url: str,
    open_store: Callable[[], Awaitable[StoreBase]],
    loop: EventLoop,
    settings: StoreSettings,
) -> Awaitable[StoreBase]:
    """Open a store and the hint channel of its clients, at the server of ``url``.

    Raises ``ConfigurationError``, now or when the result is awaited, if the URL or the
    store is not fit for that, and what ``open_store()`` raises.
    """
    # Hints of all programs may meet at one server: the random ids of clients tell them
    # apart, so a prefix has nothing to do.
    address, _ = parse(url).without_prefix("")
    connect = find_channel(address.scheme)
    opening = open_store()

    async def opened() -> StoreBase:
        store = await opening
        try:
            if Capability.HINTS not in store.capabilities:
                raise ConfigurationError(  # noqa: TRY301 - closed below
                    what="wake: this store wakes its waiters by itself"
                )
            await store.use_channel(partial(connect, address, loop, store, settings))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await store.aclose()
            raise
        return store

    return opened()


def _imported(scheme: str, target: str) -> object:
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as exc:
        ours = f"pip install 'aiorwlock-remote[{_extra(scheme)}]'"
        raise ConfigurationError(
            what=f"{scheme}:// needs {exc.name or module}, which is not installed",
            hint=ours if scheme in _BUILT_IN else "",
        ) from exc
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            what=f"{scheme}://: {target} cannot be imported: {exc}"
        ) from exc


def _extra(scheme: str) -> str:
    family = scheme.partition("+")[0]
    return _EXTRAS.get(family, family)


def schemes() -> list[str]:
    """Return all URL schemes that have a backend, sorted."""
    return sorted({*_BUILT_IN, *_registered()})


def _foreign(scheme: str) -> str:
    found = _registered().get(scheme, set())
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise ConfigurationError(
            what=f"{scheme}:// was registered by several packages: {sorted(found)}"
        )
    raise ConfigurationError(what=f"unknown store {scheme}://", hint=_hint(scheme))


def _hint(scheme: str) -> str:
    known = schemes()
    # SQLAlchemy's URLs name a driver after the plus sign: postgresql+asyncpg.
    family = scheme.partition("+")[0]
    meant = _OTHER_NAMES.get(family, family)
    like = [meant] if meant in known else get_close_matches(scheme, known, n=1)
    if like:
        return f"did you mean {like[0]}://?"
    return f"known: {', '.join(known)}"


def _registered() -> dict[str, set[str]]:
    # Reading the metadata of all packages is slow, and built-in backends need none.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found: dict[str, set[str]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, set()).add(point.value)
    return found
