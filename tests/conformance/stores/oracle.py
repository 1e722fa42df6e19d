"""The harness of Oracle, by its double."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import oracledb

from aiorwlock_remote.backends.oracle import OracleBackend
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.testing.conformance import Harness, StoreLocation
from tests.conformance.stores.postgresql import unhurried
from tests.servers.oracle.client import OracleUser
from tests.servers.plain import PlainOracle
from tests.servers.real_oracle import OracleDatabase


class OracleHarness(Harness):
    """``oracle://``: one user and its two tables, a prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.HINTS
        | Capability.ROW_LOCKS
    )
    has_foreigner = True
    answers_in = 0.5
    short = 1.0
    kept = 3.0
    grants_more = 5.0  # see cas/server_time.py; here about 0.1
    profile: ClassVar[str] = "19c"
    user: ClassVar[OracleUser | OracleDatabase]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return rows of its own."""
        prefix, user = f"{uuid4().hex}:", self.user.at(self.profile)
        return StoreLocation(unhurried(user.url), prefix, PlainOracle(user, prefix))


class Oracle122Harness(OracleHarness):
    """The harness of an old server."""

    profile = "12.2"


class Oracle23Harness(OracleHarness):
    """The harness of a new server."""

    profile = "23ai"


class OraclePoolHarness(OracleHarness):
    """Through a pool, made in the loop that uses it; other processes use the URL."""

    capabilities = OracleHarness.capabilities & ~Capability.OFF_LOOP_RENEWAL

    def fresh(self, folder: Path) -> StoreLocation:
        """Return rows of its own, and a pool for each ``Locks``."""
        login = self.user.at(self.profile).login
        return replace(super().fresh(folder), backend=PoolEach(login))


class PoolEach:
    """A pool for each ``Locks``, closed with it."""

    def __init__(self, login: dict[str, str]) -> None:
        self._login = login

    async def open(
        self, host: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        """Open a store with its own pool."""
        pool = oracledb.create_pool_async(**self._login, min=2, max=4)
        try:
            store = await OracleBackend(pool).open(host, wake, settings)
        except BaseException:
            await pool.close(force=True)
            raise
        close = store.aclose

        async def aclose() -> None:
            await close()
            await pool.close(force=True)

        store.aclose = aclose  # type: ignore[method-assign]
        return store
