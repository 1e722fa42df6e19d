"""What the suite needs of a backend: fresh stores, and a view from outside.

A backend supplies one ``Harness``. The suite opens locks through the public ``connect``
only. What another program would do to the store goes through a ``ForeignClient``, which
knows the published mutex record and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Unpack

from aiorwlock_remote import Connecting, Locks, Mutex, OptionArgs, connect, registry
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from aiorwlock_remote.ports import (
    Backend,
    Capability,
    EventLoop,
    Store,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.testing.faults import FaultyLink, FaultyStore

AnyLock = Mutex | ReaderLock | WriterLock
Name = tuple[str, int]


class ForeignClient(ABC):
    """A program that uses the published mutex record without this library.

    Each method except ``clean`` is one published statement, blocking. ``name`` is
    plain: a short type and a 32-bit integer.
    """

    @abstractmethod
    def take(self, name: Name, ticket: str) -> bool:
        """Create the record (INSERT, SET NX); return False if it exists."""

    @abstractmethod
    def put(self, name: Name, ticket: str) -> None:
        """Overwrite the record, whatever it contains."""

    @abstractmethod
    def free(self, name: Name, ticket: str) -> bool:
        """Delete the record if it has the ticket; return whether it had."""

    @abstractmethod
    def read(self, name: Name) -> str | None:
        """Return the ticket in the record, or None if there is no record."""

    @abstractmethod
    def clean(self, name: Name) -> None:
        """Delete all that is stored beside the record, as a clean-up job may do."""

    def wipe(self, name: Name) -> None:
        """Delete the record, whatever its ticket."""
        ticket = self.read(name)
        if ticket is not None:
            self.free(name, ticket)


@dataclass(frozen=True)
class StoreLocation:
    """One store, or one corner of a store, that no other test uses.

    ``prefix`` keeps tests on one server apart. ``backend``: passed to ``connect`` in
    place of ``url``, which other processes use in any case.
    """

    url: str
    prefix: str = ""
    foreigner: ForeignClient | None = None
    backend: Backend | None = None


class Harness(ABC):
    """Access of the suite to the stores of one backend.

    Attributes:
        capabilities: What the backend is expected to declare; decides which cases
            apply.
        has_foreigner: Whether its locations have a foreigner; required of a
            ``PUBLISHED_LAYOUT``.
        patience: Seconds after which the suite gives up waiting for what was promised.
        answers_in: Seconds within which a request is answered, even on a busy machine.
        kept: Seconds of a lease that must be renewed in time on such a machine.
        short: Seconds of a lease that must run out, but not before its holder has it.
        remembers_fence: Whether a free resource still shows its last fence; fences rise
            in every store.
        each_phase_reads_the_clock: Whether a phase that begins while the resource is
            held or waited for has a fence by the store's clock; if not, the fence
            before plus one.
        grants_more: Seconds by which the store lets a lease end late.
        garbage: Objects that one acquire and release may leave to the garbage
            collector: a driver's.
    """

    capabilities: ClassVar[Capability]
    has_foreigner: ClassVar[bool] = False
    patience: ClassVar[float] = 45.0
    answers_in: ClassVar[float] = 0.05
    kept: ClassVar[float] = 1.0
    short: ClassVar[float] = 0.3
    remembers_fence: ClassVar[bool] = True
    each_phase_reads_the_clock: ClassVar[bool] = True
    grants_more: ClassVar[float] = 0.0
    garbage: ClassVar[int] = 0

    @abstractmethod
    def fresh(self, folder: Path) -> StoreLocation:
        """Return a location for one test; ``folder`` is an empty folder of its own."""


@dataclass
class StoreUnderTest:
    """The store a case works on."""

    site: StoreLocation
    patience: float
    _counted: int = field(default=0)

    def connect(self, prefix: str = "", **options: Unpack[OptionArgs]) -> Connecting:
        """Open another ``Locks`` of the store: as good as another process."""
        store = self.site.url if self.site.backend is None else self.site.backend
        return connect(
            store,
            prefix=self.site.prefix + prefix,
            connect_timeout=self.patience,
            **options,
        )

    def connect_behind(
        self, link: FaultyLink, **options: Unpack[OptionArgs]
    ) -> Connecting:
        """Open another ``Locks`` whose requests fare as the link says."""
        return connect(
            _Behind(self.site, link),
            prefix=self.site.prefix,
            connect_timeout=self.patience,
            **options,
        )

    def name(self) -> Name:
        """Return a name that was not used before in this test."""
        self._counted += 1
        return "thing", self._counted

    @property
    def foreigner(self) -> ForeignClient:
        """The foreign program of this store."""
        assert self.site.foreigner is not None, "this harness has no foreigner"
        return self.site.foreigner


async def open_location(
    location: StoreLocation,
    host: EventLoop,
    bell: WakeCallback,
    settings: StoreSettings,
) -> Store:
    """Open the store of a location as ``connect`` does."""
    if location.backend is not None:
        return await location.backend.open(host, bell, settings)
    address = parse(location.url)
    return await registry.find(address.scheme)(address, host, bell, settings)


@dataclass(frozen=True)
class _Behind:
    site: StoreLocation
    link: FaultyLink

    async def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        inner = await open_location(self.site, host, bell, settings)
        return FaultyStore(inner, self.link, host, bell)


def lock_of(
    locks: Locks, mode: str, name: Name, **options: Unpack[OptionArgs]
) -> AnyLock:
    """Return a lock of the resource: a mutex, a writer or a reader."""
    if mode == "mutex":
        return locks.mutex(*name, **options)
    both = locks.rwlock(*name, **options)
    return both.writer if mode == "writer" else both.reader
