"""The lock table as one process uses it: looked at, its statements prepared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from aiorwlock_remote.backends.cassandra.driver import Statement
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.pages import PendingRows
from aiorwlock_remote.backends.cassandra.requests import Request, Rows
from aiorwlock_remote.backends.cassandra.schema import Layout, layout_of
from aiorwlock_remote.backends.cassandra.session_client import SessionClient
from aiorwlock_remote.backends.cassandra.statements import statement
from aiorwlock_remote.ports import EventLoop

NOWHERE = ("%", 0)  # no name of a resource is encoded like that

# Linearised with the lightweight transactions; what those leave half done is finished.
_SERIAL = ("load", "shown")
_PLAIN = ("appear", "seat", "keep", "vanish", "burn", "scorch", "peek", "scan")
# `load` once more, at another level: what was committed, and nothing is disturbed.
_SAME = {"peek": "load"}
# One replica will do: a cell shows its ballot or is not there yet.
_NEAR = ("seated", "seated_all")


class Table:
    """Open: the table is there and fit. ``layout``: what contends with what.

    ``gc_grace``: seconds for which deleted rows and ballots are remembered.
    """

    def __init__(
        self,
        wire: SessionClient,
        options: Options,
        layout: Layout,
        gc_grace: int,
        statements: dict[str, Statement],
        close: Callable[[], object],
    ) -> None:
        """See ``open_table``."""
        self.options: Options = options
        self.layout: Layout = layout
        self.gc_grace: int = gc_grace
        self.close: Callable[[], object] = close
        self._wire = wire
        self._statements = statements

    def request(self, name: str, *values: object) -> Request:
        """A statement of ``statements.cql`` and its values."""
        return Request(self._statements[name], values)

    def ask(self, host: EventLoop, request: Request) -> PendingRows:
        """As ``SessionClient.ask``."""
        return self._wire.ask(host, request)

    def pages(self, host: EventLoop, request: Request) -> AsyncIterator[Rows]:
        """As ``SessionClient.pages``."""
        return self._wire.pages(host, request)

    async def query(self, host: EventLoop, cql: str) -> Rows:
        """What a statement with no values tells, from one node."""
        return await self._wire.query(host, cql)


def open_table(
    wire: SessionClient, options: Options, close: Callable[[], object]
) -> Table:
    """Look at the table and prepare what is to be asked of it. Blocks.

    Raises:
        Unsupported: it is not there, not fit, or must not be read; names what to run.
        BackendError: nobody answers.
    """
    name = options.keyspace, options.table
    columns = _look(wire, options, "columns", name)
    tables = _look(wire, options, "settings", name)
    spaces = _look(wire, options, "keyspaces", ())
    layout = layout_of(
        columns,
        tables[0] if tables else None,
        [row["keyspace_name"] for row in spaces],
        options,
    )
    local = options.consistency.startswith("LOCAL_")
    levels = {
        **dict.fromkeys(_PLAIN, options.consistency),
        **dict.fromkeys(_SERIAL, options.serial_consistency),
        **dict.fromkeys(_NEAR, "LOCAL_ONE" if local else "ONE"),
    }
    statements = {
        title: wire.prepare(statement(_SAME.get(title, title), options), level)
        for title, level in levels.items()
    }
    for title in (*_SERIAL, *_NEAR, "peek", "scan"):
        statements[title].is_idempotent = True
    wire.run(Request(statements["load"], NOWHERE))  # may this role? is there a quorum?
    gc_grace: int = tables[0]["gc_grace_seconds"]
    return Table(wire, options, layout, gc_grace, statements, close)


def _look(
    wire: SessionClient, options: Options, name: str, values: Sequence[object]
) -> Rows:
    prepared = wire.prepare(statement(name, options), "ONE")
    return wire.run(Request(prepared, values))
