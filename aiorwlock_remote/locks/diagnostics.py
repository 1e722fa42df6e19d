"""What there is to know about a store, for ``Locks.examine`` and ``rwlock doctor``."""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio

from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import Capability, Clock, Diagnosable, Finding, Store

T = TypeVar("T")

_CHECKS = 20
_SCANNED = 1000
_SCANS_FOR = 2.0
"""Resources of which the last change is looked at, and for how long (seconds)."""
_SLOW_REPLY = 0.05
"""Seconds: the shortest claim window is two of these."""


@asynccontextmanager
async def closed(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a generator in the end, also if it was left early."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def diagnose(store: Store, clock: Clock) -> AsyncIterator[Finding]:
    """What every store can be asked, then what this one has to say."""
    yield await _latency(store, clock)
    yield _waiting(store)
    set_back = await _set_back(store)
    if set_back is not None:
        yield set_back
    if isinstance(store, Diagnosable):
        async for finding in store.examine():
            yield finding


async def _latency(store: Store, clock: Clock) -> Finding:
    nobody = resource("rwlock", "doctor")
    times: list[float] = []
    for _ in range(_CHECKS):
        before = clock.now()
        await store.look(nobody)
        times.append(clock.now() - before)
    typical, worst = statistics.median(times), max(times)
    value = f"{typical * 1e3:.2f} ms, at worst {worst * 1e3:.2f} ms"
    if typical > _SLOW_REPLY:
        return Finding("latency", value, "slow: leases of many seconds only", "note")
    return Finding("latency", value, "one such round trip takes a free lock")


async def _set_back(store: Store) -> Finding | None:
    """Whether the store's clock stands before the last change of some record."""
    most = looked = 0
    with suppress(BackendError), anyio.move_on_after(_SCANS_FOR):
        async with closed(store.scan(None)) as snapshots:
            async for seen in snapshots:
                most, looked = max(most, seen.set_back), looked + 1
                if looked == _SCANNED:
                    break
    if not most:
        return None
    meaning = "dead holders keep their locks for so much longer: rwlock stale"
    return Finding("clock set back", f"{most / MICROS:.0f} s", meaning, "bad")


def _waiting(store: Store) -> Finding:
    pace = store.pace
    if Capability.NOTIFIES in store.capabilities:
        meaning = f"woken at once; looks every {pace.poll_max:g} s in case none came"
        return Finding("waiting", "notified", meaning)
    meaning = f"looks every {pace.poll_max:g} s"
    if pace.sees_ends:
        meaning = "cheap looks, some times a second"
    return Finding("waiting", "polls", meaning, "note")
