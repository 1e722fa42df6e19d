"""Harnesses of stores that poll, with a Redis beside them that carries hints."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import StoreLocation
from tests.conformance.stores.cassandra import CassandraHarness
from tests.conformance.stores.mariadb import MariadbHarness
from tests.conformance.stores.oracle import OracleHarness
from tests.servers.proxy import Proxy

UP, DOWN = 0.4, 0.2
"""Seconds for which the channel that is cut again and again is there, and away."""


class HintedMariadbHarness(MariadbHarness):
    """``mariadb://…?wake=redis://…``."""

    capabilities = MariadbHarness.capabilities | Capability.NOTIFIES | Capability.PUSHES
    wake: ClassVar[str]

    def fresh(self, folder: Path) -> StoreLocation:
        return _with_wake(super().fresh(folder), self.wake)


class HintedOracleHarness(OracleHarness):
    """``oracle://…?wake=redis://…``."""

    capabilities = OracleHarness.capabilities | Capability.NOTIFIES
    wake: ClassVar[str]

    def fresh(self, folder: Path) -> StoreLocation:
        return _with_wake(super().fresh(folder), self.wake)


class HintedCassandraHarness(CassandraHarness):
    """``cassandra://…&wake=redis://…``."""

    capabilities = CassandraHarness.capabilities | Capability.NOTIFIES
    wake: ClassVar[str]

    def fresh(self, folder: Path) -> StoreLocation:
        return _with_wake(super().fresh(folder), self.wake)


def _with_wake(location: StoreLocation, wake: str) -> StoreLocation:
    sign = "&" if "?" in location.url else "?"
    return replace(location, url=f"{location.url}{sign}wake={wake}")


@contextmanager
def cut_again_and_again(port: int) -> Iterator[str]:
    """The URL of a Redis behind a proxy that is cut, and away, some times a second."""
    ended = threading.Event()

    def cut() -> None:
        while not ended.wait(UP):
            proxy.refuse()
            proxy.cut()
            if ended.wait(DOWN):
                return
            proxy.accept()

    with Proxy(port) as proxy:
        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            yield proxy.url
        finally:
            ended.set()
            cutting.join()
