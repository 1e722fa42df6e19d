"""Processes that use one lock, and the users in them, at a time of a history's."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Protocol

import anyio

from aiorwlock_remote.backends.redis.keys import wake_channel
from aiorwlock_remote.backends.redis.options import Options as Reached
from aiorwlock_remote.backends.redis.store import RedisStore
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    Closed,
    LockError,
    LockLost,
    LockTimeout,
)
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop
from aiorwlock_remote.runtime.lease import LeaseState
from aiorwlock_remote.runtime.lease_keeper import MAX_BATCH
from aiorwlock_remote.runtime.store_client import StoreClient
from tests.recipes.fake_server import Batches, Line, Server

PATIENCE = 1.0
"""Seconds a request waits for a connection, and a doubt for its end."""
SILENCE = 1.2
"""Seconds after which a server that says nothing counts as lost."""
NOBODYS_THREAD = threading.Thread()


class Asked(Protocol):
    """A lock as it is asked for."""

    def acquire(self, timeout: float | None) -> Acquisition:
        """As a lock of ours."""

    async def try_acquire(self) -> Held | None:
        """Likewise."""


class Lines:
    """For a store with fake connections."""

    off_loop = True

    def __init__(self, sent: Batches) -> None:
        self.batches = lambda *_: sent


class Process(ABC):
    """One ``Locks``; opened in the running loop. Its keeper has no threads."""

    def __init__(self, server: Server, number: int, lease: float) -> None:
        self.number = number
        settings = StoreSettings(f"client{number}", connect_timeout=PATIENCE)
        own = wake_channel(settings.client_id)
        self.line = line = Line(server, own, PATIENCE, SILENCE)
        self.batches = Batches(server)
        loop, lines = AsyncioEventLoop(server.clock), Lines(self.batches)
        self.client = client = StoreClient(loop, settings)
        store: Any = RedisStore(Reached(), loop, client.queues.wake, settings, lines)  # type: ignore[arg-type]
        store._endpoint = line
        store._sets.use(line, frozenset(), None)
        line.on_message, line.on_reconnect = store._message, store._wake_all
        client.use(store)
        self.session = Session(self.client)
        self.losses: list[Held] = []
        self.locks = Locks(self.session, Options(), "acted")
        self.uses(lease)
        self.keeper = self.client.keeper
        self.keeper._thread = self.keeper._worker._thread = NOBODYS_THREAD
        self.closing: asyncio.Task[None] | None = None

    @abstractmethod
    def uses(self, lease: float) -> None:
        """The lock, twice: one adds its losses to ``losses``."""

    @abstractmethod
    def lock(self, target: str | None, *, flagging: bool) -> Asked:
        """What is asked for that."""

    @abstractmethod
    def waiting(self) -> Collection[object]:
        """Who, or what, waits here."""

    @abstractmethod
    def lanes(self) -> list[str]:
        """The targets that somebody waits for."""

    @abstractmethod
    async def release(self, held: Held, *, remove: bool) -> None:
        """``remove``: and there is no such lock any more, if that can be."""

    def the_keeper_has_its_turn(self, outcome: str = "well") -> None:
        """Both of its threads, until they would sleep."""
        with self.batches.having(outcome):
            renewing, now = self.keeper._worker, self.session.loop.clock.now()
            while batch := self.keeper._deadlines.take(now, MAX_BATCH):
                self.keeper._check(batch)
            while not renewing._due.empty():
                leases = renewing._next_batch()
                if leases is not None:
                    renewing._renew(leases)

    def closes(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a task."""
        if self.closing is None:
            self.keeper._thread = None
            self.closing = loop.create_task(self.locks.aclose())

    def owed(self) -> list[object]:
        """What a task wants here, waits for, or has no reply about."""
        kept = [lease for due in self.keeper._deadlines._due.values() for lease in due]
        endings = self.client.cleanup._cleanups if self.closing is None else ()
        return [
            *(*self.waiting(), *kept, *self.keeper._deadlines.arrived),
            *(*endings, *self.client.in_flight._undo),
            *(*self.session._grants, *self.session.dropped),
            *(*self.line.sent, *self.line.answers, *self.line._aside),
        ]


class User:
    """Somebody who wants a lock, until it has it and leaves, or gives up.

    ``way``: "enters" (``async with``), "awaits" (``on_lost`` is called), "tries";
    ``by_scope``: is cancelled by a scope, else by its task's own ``cancel``.
    """

    def __init__(
        self,
        process: Process,
        target: str | None,
        timeout: float | None,
        way: str,
        *,
        by_scope: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.process = process
        self.target = target
        self.way = way
        self.tries = way == "tries" or timeout == 0
        limit = 0.0 if self.tries else timeout
        self.until = None if limit is None else loop.time() + limit
        self.held: Held | None = None
        self.fence = 0
        self.error: Exception | None = None
        self.removes = False
        self.cancelled = False
        self._timeout = timeout
        self._by_scope = by_scope
        self._scope: anyio.CancelScope | None = None
        self._may_leave = asyncio.Event()
        self.task = loop.create_task(self._run())

    @property
    def gone(self) -> bool:
        return self.task.done()

    @property
    def waits(self) -> bool:
        return self.held is None and not self.gone

    def believes(self) -> bool:
        """Whether ``check()`` would pass; for who entered the keeper finds that out."""
        if self.held is None:
            return False
        if self.way != "enters":
            return self.held.valid
        lease, now = self.held._lease, self.process.session.loop.clock.now()
        assert lease.deadline is not None
        return lease.state is LeaseState.HELD and now < lease.deadline

    def holds(self) -> bool:
        """It got something, whatever became of that since."""
        return self.held is not None

    @property
    def gives_back(self) -> bool:
        """As it was written to, when it was cancelled: it waits for the answer."""
        return self.held is not None and self.way != "enters" and not self._by_scope

    def leaves(self, *, removes: bool = False) -> None:
        self.removes = removes
        self._may_leave.set()

    def is_cancelled(self) -> None:
        self.cancelled = True
        if self._by_scope and self._scope is not None:
            self.task.get_loop().call_soon(self._scope.cancel)
        else:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            if self._by_scope:
                with anyio.CancelScope() as self._scope:
                    await self._visit()
            else:
                await self._visit()
        except LockError as exc:
            self.error = exc

    async def _visit(self) -> None:
        lock = self.process.lock(self.target, flagging=self.way != "enters")
        if self.way == "enters":
            async with lock.acquire(self._timeout) as held:
                self._got(held)
                await self._may_leave.wait()
            return
        if self.way == "tries":
            tried = await lock.try_acquire()
            if tried is None:
                return
            held = tried
        else:
            held = await lock.acquire(self._timeout)
        self._got(held)
        try:
            await self._may_leave.wait()
        finally:
            await self.process.release(held, remove=self.removes)

    def _got(self, held: Held) -> None:
        self.held, self.fence = held, held.fence
        held.check()

    def lost_once(self) -> None:
        """That it was lost."""
        assert self.held is not None
        assert self.held.lost is not None
        if self.way == "enters":
            assert isinstance(self.error, LockLost)
        else:
            assert [held is self.held for held in self.process.losses].count(True) == 1

    def is_over(self) -> None:
        """How it ended is as it must be."""
        assert self.gone
        lost = isinstance(self.error, LockLost)
        if self.task.cancelled():
            assert self.cancelled, "a bare cancellation"
            return
        failure = self.task.exception()
        assert failure is None, repr(failure)
        if self.cancelled and not self._by_scope and not self.gives_back:
            assert lost, f"swallowed: {self.error!r}"
        if lost:
            assert self.held is not None
            assert self.held.lost is not None
        elif self.error is not None and not isinstance(self.error, Closed):
            allowed = (LockTimeout, AcquireUncertain, BackendUnavailable, BackendError)
            assert isinstance(self.error, allowed), repr(self.error)
        if self.held is not None and self.way != "enters":
            losses = sum(held is self.held for held in self.process.losses)
            assert losses <= 1, "lost twice"
