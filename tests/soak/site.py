"""``Site``: a store that a soak is run on, and where its files are."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import ClassVar

from tests.servers.cassandra import CassandraNode
from tests.servers.clock import SteppedClock
from tests.servers.database import Database
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.soak.faults import Fault, Strike

PROXIES = 3
STEP = 3.0
"""Seconds by which a clock is set forward or back, at most."""


class Site(ABC):
    """A store in a folder of its own.

    ``left_out`` says which faults are not injected here, and why.
    """

    lease: ClassVar[float] = 2.0
    claim_window: ClassVar[float] = 0.2
    """Seconds in which who is next has to ask again, at least."""
    entry_lingers: ClassVar[float] = 0.0
    """Seconds for which the queue entry of a client that was killed may still be there.

    Where clients judge the time, each that has just come takes what it finds for up to
    ``clock_skew`` younger than it is.
    """
    sets: ClassVar[bool] = False
    disk: ClassVar[int] = 1024
    """Megabytes of the disk in memory that the store's files are on."""
    left_out: ClassVar[str] = ""
    own_network: ClassVar[bool] = False
    """Whether all takes place in a network that is no other program's."""
    setting: ClassVar[str] = ""
    """How the store is configured, for the evidence."""

    def __init__(self, folder: Path, *, small_disk: bool) -> None:
        """``small_disk``: whether the folder is on a disk that may be filled."""
        self.folder = folder
        self._small_disk = small_disk
        self.proxies: list[Proxy] = []
        self.before: tuple[str, ...] = ()
        """What goes before the command of a client."""
        self._clock = SteppedClock(folder)
        self.url = self._start()

    @abstractmethod
    def _start(self) -> str:
        """Start the store; return its URL."""

    @abstractmethod
    def faults(self) -> list[Fault]:
        """Return what happens to the store."""

    @abstractmethod
    def left(self) -> list[str]:
        """Return what a client of the store finds of locks that nobody holds."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of the server and of the driver."""

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()

    def url_of(self, place: int) -> str:
        """Return what the process of a place connects to: odd ones by a proxy."""
        if not self.proxies or place % 2 == 0:
            return self.url
        proxy = self.proxies[place // 2 % len(self.proxies)]
        return self.url.replace(f":{self._port}/", f":{proxy.port}/")

    def before_of(self, place: int) -> Sequence[str]:
        """Return what goes before the command of the process of a place alone."""
        del place
        return ()

    def _behind_proxies(self, port: int) -> None:
        self._port = port
        self.proxies = [Proxy(port) for _ in range(PROXIES)]

    def _clock_faults(self, step: float = STEP, *, fence_only: bool) -> list[Fault]:
        """The wall clock of the store's programs is set, and set right again."""

        def forward(random: Random) -> AbstractContextManager[None]:
            return self._clock_off(random.uniform(0.1, step))

        def back(random: Random) -> AbstractContextManager[None]:
            return self._clock_off(-random.uniform(0.1, step))

        span, grace = (0.2, 2.0), step if fence_only else 0.0
        return [
            Fault("clock set forward", forward, span, 1, fence_only, grace),
            Fault("clock set back", back, span, 1, fence_only, grace),
        ]

    def _disk_faults(self, strike: Strike, weight: float) -> list[Fault]:
        """A disk that is not our own is not filled."""
        if not self._small_disk:
            return []
        return [Fault("disk full", strike, (0.1, 1.5), weight)]

    @contextmanager
    def _clock_off(self, seconds: float) -> Iterator[None]:
        self._clock.set(seconds)
        try:
            yield
        finally:
            self._clock.set(0.0)

    def _clocked(self, server: RedisServer | Database | CassandraNode) -> None:
        """Start a server again, so that its clock can be set."""
        server.stop()
        server.before = self._clock.before
        server.start()


@contextmanager
def at_once(action: Callable[[], object]) -> Iterator[None]:
    action()
    yield


@contextmanager
def started(kind: type[Site]) -> Iterator[Site]:
    """Start a store; its files are on a small disk in memory, if root makes one."""
    with ExitStack() as stack:
        base = Path(tempfile.mkdtemp(prefix="soak-"))
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        base.chmod(0o755)  # servers are other users
        if small_disk := not os.geteuid():
            size = f"size={kind.disk}m,mode=755"
            mount = ["mount", "-t", "tmpfs", "-o", size, "soak", str(base)]
            subprocess.run(mount, check=True)
            unmount = ["umount", "-l", str(base)]
            stack.callback(partial(subprocess.run, unmount, check=True))
        usual, tempfile.tempdir = tempfile.tempdir, str(base)
        try:
            site = kind(base, small_disk=small_disk)
        finally:
            tempfile.tempdir = usual
        stack.callback(site.close)
        yield site


def machine() -> str:
    """Return a description of the machine, without its name."""
    model = ""
    with suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
    return f"{model}, {platform.system()} {platform.machine()}"
