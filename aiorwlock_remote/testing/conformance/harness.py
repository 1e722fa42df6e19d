"""What the suite needs of a backend: fresh stores, and access as another program.

A backend supplies one ``Harness``. The suite opens locks through the public ``connect``
only. Changes that another program makes to the store go through a ``ForeignClient``,
which knows the published mutex record and nothing else.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Unpack

from aiorwlock_remote import Connecting, Locks, Mutex, OptionArgs, connect, registry
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.locks.lock import ReaderLock, Semaphore, WriterLock
from aiorwlock_remote.ports import (
    Backend,
    Capability,
    EventLoop,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.testing.faults import FaultyLink, FaultyStore

AnyLock = Mutex | ReaderLock | WriterLock | Semaphore
Name = tuple[str, int]


class ForeignClient(ABC):
    """Base of a program that uses the published mutex record without this library.

    Methods block; each but ``clean`` and ``wipe`` is one statement of the published
    protocol. ``name``: a resource with a short type and a 32-bit integer as its id.
    """

    @abstractmethod
    def take(self, name: Name, ticket: str) -> bool:
        """Create the mutex record (INSERT, SET NX); return False if it exists."""

    @abstractmethod
    def put(self, name: Name, ticket: str) -> None:
        """Overwrite the mutex record, whatever it contains."""

    @abstractmethod
    def free(self, name: Name, ticket: str) -> bool:
        """Delete the mutex record if it has this ticket; return True if deleted."""

    @abstractmethod
    def read(self, name: Name) -> str | None:
        """Return the ticket in the mutex record, or None without a record."""

    @abstractmethod
    def clean(self, name: Name) -> None:
        """Delete all that the store has of the resource, except its mutex record."""

    def wipe(self, name: Name) -> None:
        """Delete the mutex record, whatever its ticket."""
        ticket = self.read(name)
        if ticket is not None:
            self.free(name, ticket)


@dataclass(frozen=True)
class StoreLocation:
    """Address of a store, or of a part of a store, that no other test uses.

    Attributes:
        url: URL of the store; child processes connect by it in any case.
        prefix: Begins each resource type, so that tests share a server but no locks.
        foreigner: Stand-in for a program that uses the published mutex records.
        backend: Passed to ``connect`` in place of ``url``; None: ``url`` is used.
    """

    url: str
    prefix: str = ""
    foreigner: ForeignClient | None = None
    backend: Backend | None = None


class Harness(ABC):
    """Base of the description of a backend: its stores, abilities and speed.

    Attributes:
        capabilities: What the store must declare; decides which cases apply.
        slowness: Factor by which an object's ``patience``, ``answers_in``, ``kept`` and
            ``short`` are longer than its class says, for a slow machine; by default the
            environment variable ``RWLOCK_SLOWNESS``, or 1.
        has_foreigner: Whether its locations have a ``foreigner``: a program without
            this library that writes the published mutex record itself. True if the
            capabilities include ``PUBLISHED_LAYOUT``.
        patience: Seconds that a case waits for a promised event before it fails.
        answers_in: Seconds within which a request is answered, even on a busy machine.
        kept: Lease in seconds that can be renewed in time, even on a busy machine.
        short: Lease in seconds that soon ends, but not before ``acquire`` has returned.
        remembers_fence: Whether ``info`` of a free resource shows its last fence.
        each_phase_reads_the_clock: Whether a phase that begins while the resource is
            held or waited for has a fence by the store's clock; if not, its fence is
            the previous one plus one.
        counts_fences: Whether fences are no times, but numbers that the server counts
            over all resources, as a revision that no failover sets back.
        grants_more: Seconds by which a lease in the store may end later than asked for.
        has_semaphores: Whether the store carries out the requests of a semaphore.
        garbage: Number of objects that one acquire and release may leave to Python's
            garbage collector.
    """

    capabilities: ClassVar[Capability]
    slowness: ClassVar[float] = float(os.environ.get("RWLOCK_SLOWNESS", "1"))
    has_foreigner: ClassVar[bool] = False
    patience: ClassVar[float] = 45.0
    answers_in: ClassVar[float] = 0.05
    kept: ClassVar[float] = 1.0
    short: ClassVar[float] = 0.3
    remembers_fence: ClassVar[bool] = True
    each_phase_reads_the_clock: ClassVar[bool] = True
    counts_fences: ClassVar[bool] = False
    grants_more: ClassVar[float] = 0.0
    has_semaphores: ClassVar[bool] = True
    garbage: ClassVar[int] = 0

    def __init__(self) -> None:
        for name in ("patience", "answers_in", "kept", "short"):
            setattr(self, name, self.slowness * getattr(self, name))

    @abstractmethod
    def fresh(self, folder: Path) -> StoreLocation:
        """Return a new location for one test; ``folder``: an empty folder for it."""


@dataclass
class StoreUnderTest:
    """The store that a case tests: opens ``Locks`` and makes unused lock names."""

    site: StoreLocation
    patience: float
    _counted: int = field(default=0)

    def connect(
        self,
        prefix: str = "",
        link: FaultyLink | None = None,
        poll_policy: PollPolicy | None = None,
        **options: Unpack[OptionArgs],
    ) -> Connecting:
        """Open a ``Locks`` as a new process does, with these options.

        ``prefix`` is put after the location's. If there is a ``link``, requests fail or
        wait as the link says. ``poll_policy``: how often its waiters poll, in place of
        what the store wants.
        """
        store: str | Backend = self.site.backend or self.site.url
        if link is not None or poll_policy is not None:
            store = _Behind(self.site, link or FaultyLink(), poll_policy)
        return connect(
            store,
            prefix=self.site.prefix + prefix,
            connect_timeout=self.patience,
            **options,
        )

    def name(self) -> Name:
        """Return a resource name that was not used before in this test."""
        self._counted += 1
        return "thing", self._counted

    @property
    def foreigner(self) -> ForeignClient:
        """Stand-in for a program that uses this store without this library."""
        assert self.site.foreigner is not None, "this harness has no foreigner"
        return self.site.foreigner


async def open_location(
    location: StoreLocation,
    loop: EventLoop,
    wake: WakeCallback,
    settings: StoreSettings,
) -> StoreBase:
    """Open the store of a location for the event loop ``loop``.

    The store calls ``wake`` if a waiter may soon get the resource.
    """
    if location.backend is not None:
        return await location.backend.open(loop, wake, settings)
    address, channel = parse(location.url).without_wake("")
    opener = registry.find(address.scheme)
    open_store = partial(opener, address, loop, wake, settings)
    if not channel:
        return await open_store()
    return await registry.with_hints(channel, open_store, loop, settings)


@dataclass(frozen=True)
class _Behind:
    site: StoreLocation
    link: FaultyLink
    poll_policy: PollPolicy | None

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        heard = self.link.hearing(wake)
        inner = await open_location(self.site, loop, heard, settings)
        return FaultyStore(inner, self.link, loop, wake, self.poll_policy)


MODES = ("mutex", "writer", "reader")


def lock_of(
    locks: Locks, mode: str, name: Name, **options: Unpack[OptionArgs]
) -> AnyLock:
    """Return a lock of the resource; ``mode``: one of ``MODES``."""
    if mode == "mutex":
        return locks.mutex(*name, **options)
    both = locks.rwlock(*name, **options)
    return both.writer if mode == "writer" else both.reader
