"""Faults of a soak: what is done to processes and to the network."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.store_outages import unreachable
from tests.servers.proxy import Proxy
from tests.servers.server import Server

Strike = Callable[[Random], AbstractContextManager[object]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        kind: its name on the evidence page.
        strike: a fault of this kind is in force while the block runs.
        seconds: for how long the block runs: least and most.
        weight: how often it is chosen, beside others.
        fence_only: beyond what the store promises: judged by the fence only.
        grace: seconds that are added to the bounds of progress.
        forgets: what the store did last is lost, releases as well.
    """

    kind: str
    strike: Strike
    seconds: tuple[float, float] = (0.0, 0.0)
    weight: float = 1.0
    fence_only: bool = False
    grace: float = 0.0
    forgets: bool = False


# --------------------------------------------------------------------- processes


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, children first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))

    def below(one: int) -> Iterator[int]:
        for child in children.get(one, []):
            yield from below(child)
        yield one

    return list(below(pid))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for a process and its children."""
    found = descendants(pid)
    for one in reversed(found):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


@contextmanager
def killed(server: Server) -> Iterator[None]:
    """The server is killed, and started again at the end."""
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def restarted(server: Server) -> Iterator[None]:
    """The server ends in order, and is started again at the end."""
    server.stop()
    try:
        yield
    finally:
        server.start()


def server_faults(
    server: Server, lease: float, weight: float = 1.0, grace: float = 0.0
) -> list[Fault]:
    """Return what may happen to a server that loses nothing when it is killed.

    ``grace``: seconds for which it may be slow when it has started.
    """
    stop = lambda _: stopped(server.pid)  # noqa: E731 - it is the same for two
    return [
        Fault(
            *("server killed", lambda _: killed(server), (0, 1.5), weight),
            grace=grace,
        ),
        Fault(
            *("server restarted", lambda _: restarted(server), (0, 1.0), weight),
            grace=grace,
        ),
        Fault("server stopped", stop, (0.05, 0.5 * lease), 2 * weight),
        Fault("server stopped past the lease", stop, (lease, 1.5 * lease), weight),
    ]


# ----------------------------------------------------------------------- network


@contextmanager
def _swallowed(proxy: Proxy) -> Iterator[None]:
    proxy.black_hole(on=True)
    try:
        yield
    finally:
        # All that lost bytes is cut before any more pass: a stream has no gaps.
        proxy.refuse()
        proxy.cut()
        proxy.black_hole(on=False)
        proxy.accept()


@contextmanager
def _slowed(proxy: Proxy, delay: float) -> Iterator[None]:
    proxy.slow(delay)
    try:
        yield
    finally:
        proxy.slow(0.0)


@contextmanager
def _cut(proxy: Proxy) -> Iterator[None]:
    proxy.cut()
    yield


@contextmanager
def _cut_in_reply(proxy: Proxy, count: int) -> Iterator[None]:
    proxy.cut_after(count, to="client")
    yield


@contextmanager
def _cut_in_request(proxy: Proxy, count: int) -> Iterator[None]:
    proxy.cut_after(count, to="server")
    yield


def network_faults(proxies: list[Proxy], lease: float) -> list[Fault]:
    """Return what may happen to the connections of one process."""
    if not proxies:
        return []

    def of_one(
        strike: Callable[[Proxy, Random], AbstractContextManager[None]],
    ) -> Strike:
        return lambda random: strike(random.choice(proxies), random)

    return [
        Fault("connections cut", of_one(lambda proxy, _: _cut(proxy)), weight=6),
        Fault(
            "connection cut in a reply",
            of_one(
                lambda proxy, random: _cut_in_reply(proxy, random.randrange(1, 2000))
            ),
            (0.1, 0.3),
            weight=6,
        ),
        Fault(
            "connection cut in a request",
            of_one(
                lambda proxy, random: _cut_in_request(proxy, random.randrange(1, 2000))
            ),
            (0.1, 0.3),
            weight=6,
        ),
        Fault(
            "network slow",
            of_one(lambda proxy, random: _slowed(proxy, random.uniform(0.001, 0.05))),
            (0.3, 1.0),
            weight=3,
        ),
        Fault(
            "network away",
            of_one(lambda proxy, _: unreachable(proxy)),
            (0.1, 0.5 * lease),
            weight=3,
        ),
        Fault(
            "network silent",
            of_one(lambda proxy, _: _swallowed(proxy)),
            (0.1, 0.5 * lease),
            weight=3,
        ),
        Fault(
            "network silent past the lease",
            of_one(lambda proxy, _: _swallowed(proxy)),
            (lease, 1.5 * lease),
        ),
    ]


# -------------------------------------------------------------------------- disk


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Nothing more fits on a small disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    try:
        yield
    finally:
        ballast.unlink()
