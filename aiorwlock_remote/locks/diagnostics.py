"""Figures of a ``Locks``, and findings about its store (``Locks.examine``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode, ModeName
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.locks.info import Holder, lock_info
from aiorwlock_remote.ports import (
    WAKE_CHANNEL,
    Capability,
    Clock,
    Finding,
    Snapshot,
    StoreBase,
)

if TYPE_CHECKING:
    from aiorwlock_remote.locks.session import Session
    from aiorwlock_remote.runtime.store_client import StoreClient
    from aiorwlock_remote.runtime.wait_queue import WakeCause


_CHECKS = 20
"""Round trips to the store that are timed."""
_SCANNED = 1000
_SCANS_FOR = 2.0
"""Limits of the search for what is wrong with records: resources, and seconds."""
_SLOW_REPLY = 0.05
"""Seconds; a slower round trip is reported. The shortest claim window has two of it."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of one ``Locks``: now, and totals since it was opened. Ages in seconds.

    Attributes:
        waiting: number of tasks that wait now, by mode.
        held: number of grants that are held now, by mode.
        oldest_waiter: age of the longest wait; None: no task waits.
        oldest_held: age of the oldest grant; None: no grant is held.
        renewals_due: background renewals that became due, counted by grant.
        renewals_sent: background renewals sent to the store, counted by grant.
        renewals_failed: background renewals that failed; each is repeated.
        requests_sent: requests to the store.
        requests_retried: requests that repeated another one after its failure.
        wakeups: how often waiters asked the store again, by cause: ``message`` (the
            store sent a wake-up), ``timer`` (the lease of a holder was to end),
            ``poll`` (the poll interval was over); and ``pushed``, how often a waiter
            entered by a message of the store, without asking.
        connections: the state of each connection or pool by name, in words, and of the
            channel of ``connect(wake=…)``; empty if the store does not report them
            (memory, Cassandra without such a channel).
    """

    waiting: Mapping[ModeName, int]
    held: Mapping[ModeName, int]
    oldest_waiter: float | None
    oldest_held: float | None
    renewals_due: int
    renewals_sent: int
    renewals_failed: int
    requests_sent: int
    requests_retried: int
    wakeups: Mapping[WakeCause, int]
    connections: Mapping[str, str]


def collect_statistics(session: Session) -> Statistics:
    """Return the ``Statistics`` of one session, now; no I/O."""
    client = session.client
    store, leases = client.store, session.leases()
    # Weak references: mutex sets that are no longer used have no waiters.
    waiters = [w for acquirer in client.acquirers for w in acquirer.waiters()]
    due, sent, failed = client.keeper.renewals
    return Statistics(
        waiting=_by_mode([mode for mode, _ in waiters]),
        held=_by_mode([lease.mode for lease in leases]),
        oldest_waiter=_age(client.clock, [since for _, since in waiters]),
        oldest_held=_age(client.clock, [lease.since for lease in leases]),
        renewals_due=due,
        renewals_sent=sent,
        renewals_failed=failed,
        requests_sent=client.requests_sent,
        requests_retried=client.requests_retried + client.cleanup.retried,
        wakeups=dict(client.wakeups),
        connections=store.connections(),
    )


def _by_mode(modes: Sequence[Mode]) -> dict[ModeName, int]:
    return {mode.shown: modes.count(mode) for mode in Mode}


def _age(clock: Clock, times: Sequence[float]) -> float | None:
    return clock.now() - min(times) if times else None


async def diagnose(client: StoreClient) -> AsyncGenerator[Finding, None]:
    """Yield findings that apply to every store, then those of this store itself."""
    store = client.store
    yield await _latency(store, client.clock)
    yield _waiting(store)
    for finding in await _scanned(store):
        yield finding
    async with aclosing(store.examine()) as found:
        async for finding in found:
            yield finding


async def _latency(store: StoreBase, clock: Clock) -> Finding:
    from statistics import median  # noqa: PLC0415 - imports much, for doctors only

    nobody = resource("rwlock", "doctor")
    times: list[float] = []
    for _ in range(_CHECKS):
        before = clock.now()
        await store.look(nobody)
        times.append(clock.now() - before)
    typical, worst = median(times), max(times)
    value = f"{typical * 1e3:.2f} ms, at worst {worst * 1e3:.2f} ms"
    if typical > _SLOW_REPLY:
        return Finding("latency", value, "slow: leases of many seconds only", "note")
    return Finding("latency", value, "one such round trip takes a free lock")


async def _scanned(store: StoreBase) -> list[Finding]:
    set_back = looked = 0
    foreign: list[Holder] = []
    # A store without this right, or with millions of records, has other findings still.
    with suppress(BackendError), anyio.move_on_after(_SCANS_FOR):
        async with aclosing(store.scan(None)) as snapshots:
            async for seen in snapshots:
                set_back, looked = max(set_back, seen.set_back), looked + 1
                foreign += _endless_foreign(seen)
                if looked == _SCANNED:
                    break
    found: list[Finding] = []
    if set_back:
        meaning = "dead holders keep their locks for so much longer: rwlock stale"
        value = f"{set_back / MICROS:.0f} s"
        found.append(Finding("clock set back", value, meaning, "bad"))
    if foreign:
        oldest = max(holder.age for holder in foreign)
        reading = sum(holder.mode == "read" for holder in foreign)
        value = f"{len(foreign)} without an end, oldest {oldest:.0f} s"
        value += f", {reading} with `readers`" if reading else ""
        meaning = "other programs hold these locks, or a job deleted what this library"
        meaning += " has beside the mutex record: rwlock stale, rwlock break"
        found.append(Finding("foreign records", value, meaning, "note"))
    return found


def _endless_foreign(seen: Snapshot) -> list[Holder]:
    holders = lock_info(seen).holders
    return [one for one in holders if one.foreign and one.expires_in is None]


def _waiting(store: StoreBase) -> Finding:
    looks = _looks(store)
    channel = store.connections().get(WAKE_CHANNEL)
    if channel is not None:
        fine = store.hints_come
        meaning = f"woken at once; {looks} in case no message came"
        if not fine:
            meaning = f"{looks} until it is back"
        value = f"hinted, {WAKE_CHANNEL} {channel}"
        return Finding("waiting", value, meaning, "good" if fine else "bad")
    if Capability.NOTIFIES in store.capabilities:
        meaning = f"woken at once; {looks} in case no message came"
        return Finding("waiting", "notified", meaning)
    return Finding("waiting", "polls", looks, "note")


def _looks(store: StoreBase) -> str:
    interval = store.poll_interval
    if interval is None:
        poll_policy = store.poll_policy
        return f"asks every {_range(poll_policy.poll_min, poll_policy.poll_max)} s"
    least, most = interval
    return f"cheap looks every {_range(least * 1e3, most * 1e3)} ms"


def _range(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"
