"""A store whose statements are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.backends.cassandra.store import CassandraStore
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.ports import (
    EventLoop,
    Pending,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from tests.servers.fix_cassandra import Keyspace

READS = {"peek", "load", "scan", "read_ballot"}


class CountingBackend:
    """A backend that counts the statements of its store, by name."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.sent: Counter[str] = Counter()
        self.steps = 0
        self.states_seen = 0
        self.unsent: set[str] = set()
        self.store: CassandraStore
        self._backend = CassandraBackend(keyspace.visit.session, keyspace.name)

    async def open(
        self, host: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        store = self.store = await self._backend.open(host, wake, settings)
        table: Table = store._table
        request = table.request

        def counted(name: str, *values: object) -> Any:  # noqa: ANN401
            self.sent[name] += 1
            if name in self.unsent:
                raise BackendUnavailable(what="nobody is there", nothing_done=True)
            return request(name, *values)

        step = store.step

        def stepped(resource: Resource, command: Command) -> Pending[Reply]:
            self.steps += 1
            return step(resource, command)

        tell = store.saw

        def saw(resource: Resource, state: StoredState) -> None:
            self.states_seen += 1
            tell(resource, state)

        store.saw = saw  # type: ignore[method-assign]
        table.request = counted  # type: ignore[method-assign]
        store.step = stepped  # type: ignore[method-assign]
        return store

    def taken(self) -> dict[str, int]:
        """What was sent since the last call."""
        sent, self.sent = dict(self.sent), Counter()
        return sent

    @property
    def swaps(self) -> int:
        return sum(n for name, n in self.sent.items() if name not in READS)
