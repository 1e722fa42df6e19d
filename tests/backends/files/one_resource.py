"""One process's way to a directory, with a clock that can be moved on."""

from __future__ import annotations

import time
from pathlib import Path
from random import uniform

from aiorwlock_remote.backends.files.directory import FileOptions
from aiorwlock_remote.backends.files.store import FilesConnection
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    ForceRelease,
    Granted,
    Release,
    Reply,
)
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.embedded.connection import KeptLocked, Seen
from aiorwlock_remote.ports import Snapshot

LEASE = 30_000_000
ORDER = resource("order", 42)


class Moved:
    """This host's clocks, moved on by some seconds, and its wall clock set back."""

    def __init__(self) -> None:
        self.by = self.back = 0.0

    def now(self) -> float:
        return time.monotonic() + self.by

    def wall(self) -> float:
        return time.time() + self.by - self.back


class ResourceClient:
    """Steps one at a time."""

    def __init__(
        self,
        folder: Path,
        client_id: str = "",
        *,
        sync: bool = True,
        shared: bool = False,
        create: bool = False,
    ) -> None:
        self.clock = Moved()
        self.patience = 20.0
        about = FileOptions(str(folder), create, sync, shared)
        self.connection = FilesConnection(about, self.clock, client_id)
        self.connection.open(1.0)

    def ask(self, command: Command, of: Resource = ORDER) -> Reply:
        """The answer; raises what the step failed with."""
        until = time.monotonic() + self.patience
        while True:
            (step,) = self.connection.steps([(of, command)], 0.0)
            if not isinstance(step, KeptLocked) or time.monotonic() > until:
                break
            time.sleep(uniform(0.0002, 0.002))  # as the worker does
        if isinstance(step, Exception):
            raise step
        return step.reply

    def take(self, ticket: str, mode: Mode = Mode.WRITE, of: Resource = ORDER) -> int:
        """The fence, 0 if refused."""
        reply = self.ask(Acquire((Claim(ticket, LEASE),), mode), of)
        return reply.grants[0].fence if isinstance(reply, Granted) else 0

    def give(self, ticket: str, *then: Acquire, of: Resource = ORDER) -> Reply:
        """Release it."""
        return self.ask(Release(ticket, then=then), of)

    def force(self, seat: str, of: Resource = ORDER) -> Reply:
        """Break a foreign seat."""
        return self.ask(ForceRelease(seat=seat), of)

    def scan(self) -> list[Snapshot]:
        """All there are."""
        seen: Seen = {}
        self.connection.scan(seen)
        return [snapshot for snapshot in seen.values() if snapshot is not None]

    def look(self, of: Resource = ORDER) -> Snapshot:
        """As it stands."""
        return self.connection.look(of)
