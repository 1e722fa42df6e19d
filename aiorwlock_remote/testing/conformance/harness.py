"""What the suite has to know of a backend: where a fresh store is, and its outside.

A backend supplies one ``Harness``. The suite opens its locks through the public
``connect`` only; what another program would do to the store goes through a
``ForeignClient``, which knows the published mutex record and nothing else.
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
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.testing.faults import FaultyLink, FaultyStore

AnyLock = Mutex | ReaderLock | WriterLock
Name = tuple[str, int]


class ForeignClient(ABC):
    """A program that uses the published mutex record without this library.

    Each method but ``clean`` is one published statement, blocking. ``name`` is plain: a
    short type and a 32-bit integer. Whatever is not the seat is none of its business.
    """

    @abstractmethod
    def take(self, name: Name, ticket: str) -> bool:
        """Create the record (INSERT, SET NX); False if there is one already."""

    @abstractmethod
    def put(self, name: Name, ticket: str) -> None:
        """Write the record over whatever stands there."""

    @abstractmethod
    def free(self, name: Name, ticket: str) -> bool:
        """Delete the record if the ticket is in it; whether it was."""

    @abstractmethod
    def read(self, name: Name) -> str | None:
        """The ticket in the record, None if there is no record."""

    @abstractmethod
    def clean(self, name: Name) -> None:
        """Delete all that stands beside the record, as a job that cleans up may do."""

    def wipe(self, name: Name) -> None:
        """Delete the record, whatever ticket is in it."""
        ticket = self.read(name)
        if ticket is not None:
            self.free(name, ticket)


@dataclass(frozen=True)
class StoreLocation:
    """One store, or one corner of a store, that nobody else uses.

    ``prefix`` keeps tests apart that share a server. ``backend`` is what ``connect`` is
    given in place of ``url``, which other processes use all the same.
    """

    url: str
    prefix: str = ""
    foreigner: ForeignClient | None = None
    backend: Backend | None = None


class Harness(ABC):
    """How the suite gets at the stores of one backend.

    ``capabilities`` are those the backend is expected to declare; they decide which
    cases apply. ``has_foreigner``: whether its sites come with a foreigner; demanded of
    a ``PUBLISHED_LAYOUT``. ``patience``: seconds after which the suite gives up waiting
    for something that was promised. ``answers_in``: seconds within which a request is
    answered, also on a busy machine. ``kept``: seconds of a lease that is meant to be
    renewed in time, on such a machine too, ``short`` of one that is meant to run out,
    but not before its holder hears of it. ``remembers_fence``: whether a resource that
    nobody holds or waits for still shows its last fence; fences rise with every store.
    ``each_phase_reads_the_clock``: whether a phase that begins while the resource is
    held or waited for has a fence by the store's clock, too; if not, it is the one
    before plus one. ``grants_more``: seconds by which the store lets a lease end later
    than its holder asked for. ``garbage``: objects that a cycle leaves to the garbage
    collector at most, those of a driver.
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
        """A site for one test; ``folder`` is an empty one for that test alone."""


@dataclass
class StoreUnderTest:
    """The store a case works on."""

    site: StoreLocation
    patience: float
    _counted: int = field(default=0)

    def connect(self, prefix: str = "", **options: Unpack[OptionArgs]) -> Connecting:
        """Other ``Locks`` of the same store: as good as another process."""
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
        """The same, but each request fares as the link says."""
        store = _Behind(self.site, link)
        prefix, patience = self.site.prefix, self.patience
        return connect(store, prefix=prefix, connect_timeout=patience, **options)

    def name(self) -> Name:
        """A name not used before in this test."""
        self._counted += 1
        return "thing", self._counted

    @property
    def foreigner(self) -> ForeignClient:
        """Another program."""
        assert self.site.foreigner is not None, "this harness has no foreigner"
        return self.site.foreigner


@dataclass(frozen=True)
class _Behind:
    """A backend: the site's store, behind a link."""

    site: StoreLocation
    link: FaultyLink

    async def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        """As ``Backend``."""
        backend = self.site.backend
        if backend is not None:
            inner = await backend.open(host, bell, settings)
        else:
            address = parse(self.site.url)
            opener = registry.find(address.scheme)
            inner = await opener(address, host, bell, settings)
        return FaultyStore(inner, self.link, host, bell)


def lock_of(
    locks: Locks, mode: str, name: Name, **options: Unpack[OptionArgs]
) -> AnyLock:
    """One of the three ways to hold a resource: mutex, writer or reader."""
    if mode == "mutex":
        return locks.mutex(*name, **options)
    both = locks.rwlock(*name, **options)
    return both.writer if mode == "writer" else both.reader
