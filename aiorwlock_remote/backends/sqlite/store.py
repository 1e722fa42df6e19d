"""``sqlite:///path`` — locks among the processes of one host, in one file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TypeVar

from aiorwlock_remote.backends.sqlite.connection import SqliteConnection
from aiorwlock_remote.backends.sqlite.row_plans import SqlitePlanRunner
from aiorwlock_remote.core.row_dialects import SQLITE, Dialect
from aiorwlock_remote.core.row_plans import Plan, Statement
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.embedded.store import EmbeddedStore
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Pending,
    StoreSettings,
    WakeCallback,
)

T = TypeVar("T")


class SqliteStore(EmbeddedStore):
    """One connection for steps, one to watch, one to renew."""

    capabilities: Capability = EmbeddedStore.capabilities
    one_lock: bool = True

    def __init__(
        self,
        path: str,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        rows: str = "",
    ) -> None:
        """The file is opened by the first job of the worker.

        ``rows``: the file of the user's tables, if it is another one.
        """
        file, table_file = _absolute(path), _absolute(rows or path)
        connect = partial(SqliteConnection, file, host.clock)
        super().__init__(connect, "sqlite", host, bell, settings)
        self._rows = SqlitePlanRunner(table_file, host)

    @property
    def dialect(self) -> Dialect:
        """Of statements on the user's tables."""
        return SQLITE

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Statements on the user's tables; see ``SupportsRowLocks``."""
        return self._rows.carry(plan)

    async def aclose(self) -> None:
        """Finish what is queued and close the files."""
        await self._rows.aclose()
        await super().aclose()


def _absolute(path: str) -> str:
    """The keeper and the watcher open it later, maybe from elsewhere."""
    try:
        return str(Path(path).absolute())
    except FileNotFoundError:
        raise ConfigurationError(
            what=f"{path} is below the current folder, which was removed",
            hint="say an absolute path: sqlite:////var/lib/app/locks.db",
        ) from None


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> SqliteStore:
    """Open ``sqlite:///relative/path`` or ``sqlite:////absolute/path``.

    ``?rows=path``: the file of the tables that row locks are for.

    Raises:
        ConfigurationError: no path, a host, an option, or another application's file.
        BackendError: the file cannot be read, written, or is locked for too long.
    """
    address.only("rows")
    path = address.path.removeprefix("/")
    if address.host or address.username or not path or path == ":memory:":
        raise ConfigurationError(
            what="sqlite needs the path of a file",
            hint="sqlite:///relative.db, sqlite:////absolute.db, or use memory://",
        )
    rows = address.query.get("rows", "")
    store = SqliteStore(path, host, bell, settings, rows)
    await store.open()
    return store
