"""Defines ``CassandraBackend``: locks through a driver session of the user's."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import anyio

from aiorwlock_remote.backends.cassandra.options import TABLE, options_of, statement
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.backends.cassandra.store import CassandraStore

LayoutName = Literal["pair", "type"]


class DriverSession(Protocol):
    """Interface of cassandra-driver's ``Session``: the members this library uses."""

    @property
    def keyspace(self) -> Any: ...  # noqa: ANN401
    @property
    def cluster(self) -> Any: ...  # noqa: ANN401
    @property
    def is_shutdown(self) -> Any: ...  # noqa: ANN401


@final
class CassandraBackend:
    """Locks over a session of cassandra-driver: pass it to ``connect``, not a URL.

    ``connect(CassandraBackend(session))`` works on asyncio and trio alike. This library
    never changes or closes the session, which must stay open while locks are in use. Of
    the session's settings only the load balancing is used: consistency, retries and row
    format are set for each request by an execution profile of this library.
    """

    def __init__(
        self,
        session: DriverSession,
        keyspace: str | None = None,
        *,
        table: str = TABLE,
        consistency: str = "QUORUM",
        serial_consistency: str = "SERIAL",
        request_timeout: float = 2.0,
        clock_skew: float = 10.0,
    ) -> None:
        """Check the arguments; no I/O.

        Args:
            session: A connected ``cassandra.cluster.Session``.
            keyspace: Keyspace of the lock table; by default the session's.
            table: Name of the lock table.
            consistency: Consistency level of writes and plain reads.
            serial_consistency: ``SERIAL``, or ``LOCAL_SERIAL`` for one data centre.
            request_timeout: Seconds until a silent node counts as lost for one request.
            clock_skew: Seconds by which the wall clocks of two processes may differ.

        Raises:
            ConfigurationError: ``session`` is not a session, no keyspace is known, or
                an option has an invalid value.
        """
        # By its methods: this module must be importable without the driver.
        if not all(hasattr(session, name) for name in ("execute_async", "cluster")):
            kind = type(session)
            raise ConfigurationError(
                what=f"{kind.__module__}.{kind.__name__} is not a session",
                hint="CassandraBackend(cassandra.cluster.Cluster(…).connect())",
            )
        given = {
            "table": table,
            "consistency": consistency,
            "serial_consistency": serial_consistency,
            "request_timeout": request_timeout,
            "clock_skew": clock_skew,
        }
        path = f"/{keyspace or session.keyspace or ''}"
        query = {name: str(value) for name, value in given.items()}
        address = Address("cassandra", "session", path=path, query=query)
        self._options = replace(options_of(address), hosts=())
        self._session: Any = session

    def __repr__(self) -> str:
        # The session is left out: its cluster knows a password.
        return f"<CassandraBackend of {self._options.quoted}>"

    def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> Awaitable[CassandraStore]:
        from aiorwlock_remote.backends.cassandra import opening, store  # noqa: PLC0415 - they need the driver

        options = replace(self._options, connect_timeout=settings.connect_timeout)

        async def opened() -> CassandraStore:
            table = await opening.use_session(self._session, options, loop)
            return store.CassandraStore(table, loop, wake, settings)

        return opened()

    async def create_schema(self, layout: LayoutName = "pair") -> None:
        """Create the lock table, unless a table of that name exists already.

        Executes the statement that ``rwlock schema cassandra`` prints; the role needs
        ``CREATE``. Nothing else in this backend changes a schema. If the caller is
        cancelled, the table may still be created.

        ``layout`` chooses the primary key. "pair": each resource has a partition of its
        own. "type", as in the published table: all integer ids of a type are in one
        partition, where their transactions take turns.

        Raises:
            ConfigurationError: ``layout`` is neither of the two.
            BackendError: The keyspace does not exist, the role may not create a table,
                or no node answers.
        """
        from aiorwlock_remote.backends.cassandra import errors  # noqa: PLC0415 - needs the driver

        if layout not in ("pair", "type"):
            raise ConfigurationError(
                what=f"layout {quoted(layout)} does not exist", hint="pair or type"
            )
        cql = statement(f"schema_{layout}", self._options)
        # The driver blocks, and cannot be cancelled: then its thread is left alone.
        try:
            await anyio.to_thread.run_sync(
                self._session.execute, cql, abandon_on_cancel=True
            )
        except Exception as exc:
            raise errors.from_driver(exc, self._options.where) from exc
