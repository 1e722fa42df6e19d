"""The harness of ``memory://``."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

from aiorwlock_remote.backends.memory import MemoryDatabase, named_database
from aiorwlock_remote.core.doorman import MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import (
    ForeignClient,
    Harness,
    Name,
    StoreLocation,
)


class MemoryHarness(Harness):
    """``memory://``: as no other program reaches it, a test changes the record."""

    capabilities = Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL | Capability.PUSHES
    has_foreigner = True

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return a database of its own."""
        name = uuid4().hex
        return StoreLocation(
            f"memory://{name}", foreigner=ForeignMemoryClient(named_database(name))
        )


class ForeignMemoryClient(ForeignClient):
    """Changes the mutex record, and nothing else, as a foreign program would."""

    def __init__(self, kept: MemoryDatabase) -> None:
        self._database = kept

    def take(self, name: Name, ticket: str) -> bool:
        with self._database.lock:
            if _resource(name) in self._database.seats:
                return False
            self._database.seats[_resource(name)] = self._seat(ticket)
            return True

    def put(self, name: Name, ticket: str) -> None:
        with self._database.lock:
            self._database.seats[_resource(name)] = self._seat(ticket)

    def free(self, name: Name, ticket: str) -> bool:
        with self._database.lock:
            seat = self._database.seats.get(_resource(name))
            if seat is None or seat.ticket != ticket:
                return False
            del self._database.seats[_resource(name)]
            return True

    def clean(self, name: Name) -> None:
        with self._database.lock:
            self._database.records.pop(_resource(name), None)

    def read(self, name: Name) -> str | None:
        with self._database.lock:
            seat = self._database.seats.get(_resource(name))
            return None if seat is None else seat.ticket

    def _seat(self, ticket: str) -> MutexRecord:
        return MutexRecord(f"{ticket},{int(time.time())}")


def _resource(name: Name) -> Resource:
    kind, number = name
    return Resource(kind, str(number))
