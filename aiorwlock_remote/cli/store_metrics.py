"""The metrics of a store that ``rwlock exporter`` serves."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import anyio
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from aiorwlock_remote import Closed, LockError, LockInfo, Locks
from aiorwlock_remote.core.ticket import ModeName
from aiorwlock_remote.locks.info import left_behind

_PREFIX = "rwlock_store_"
MAX_TYPES = 200
OTHER_TYPES = "(other)"
"""The label of all resource types that come after the first ``MAX_TYPES``."""


@dataclass
class TypeFigures:
    """Figures of the resources of one type; ages in seconds, None: there is none."""

    held: Counter[ModeName] = field(default_factory=Counter[ModeName])
    waiting: Counter[ModeName] = field(default_factory=Counter[ModeName])
    never_ending: int = 0
    left_behind: int = 0
    ran_out: int = 0
    oldest_held: float | None = None
    longest_wait: float | None = None

    def add(self, seen: LockInfo) -> None:
        """Count the holders and the queue of a resource."""
        for holder in seen.holders:
            if holder.expires_in is None:
                self.never_ending += 1
            elif holder.expires_in <= 0:
                self.ran_out += 1
                continue  # it blocks no client
            self.held[holder.mode] += 1
            self.oldest_held = max(self.oldest_held or 0.0, holder.age)
        self.left_behind += len(left_behind(seen))
        for queued in seen.queue:
            self.waiting[queued.mode] += queued.waiting
            self.longest_wait = max(self.longest_wait or 0.0, queued.age)


@dataclass
class StoreFigures:
    """Figures of one listing of a store, by resource type; it took ``seconds``."""

    types: dict[str, TypeFigures]
    seconds: float


class StoreLister:
    """Counts what a store lists, and reports when the store goes away or comes back.

    A type or mode that was seen once is counted on, as 0. So a curve does not end when
    the last lock of its type is released.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Locks]],
        timeout: float,
        report: Callable[[str], object],
        *,
        by_type: bool = True,
    ) -> None:
        """Prepare to list a store.

        Args:
            open_store: returns the ``Locks``; called for each listing.
            timeout: seconds after which a store that does not answer is away.
            report: called with a line when the store goes away or comes back.
            by_type: count each type for itself; else all types together.
        """
        self._open_store = open_store
        self._timeout = timeout
        self._report = report
        self._by_type = by_type
        self._known: dict[str, TypeFigures] = {}
        self._away = False

    async def list_store(self) -> StoreFigures | None:
        """List the store; return None if it failed, or did not answer in time."""
        began = time.perf_counter()
        found: dict[str, TypeFigures] = {}
        try:
            with anyio.fail_after(self._timeout):
                locks = await self._open_store()
                async with aclosing(locks.list()) as listed:
                    async for seen in listed:
                        name = self._label(seen.resource_type, found)
                        found.setdefault(name, TypeFigures()).add(seen)
        except TimeoutError:
            self._failed(f"the store did not answer in {self._timeout:g} s")
            return None
        except Closed:  # the exporter ends
            return None
        except (LockError, OSError) as exc:
            self._failed(str(exc))
            return None
        if self._away:
            self._away = False
            self._report("the store is back")
        self._remember(found)
        return StoreFigures(found, time.perf_counter() - began)

    def _label(self, resource_type: str, found: dict[str, TypeFigures]) -> str:
        if not self._by_type:
            return ""
        # The number of series stays bounded, also if a program makes types from ids.
        if resource_type in self._known or resource_type in found:
            return resource_type
        full = len(self._known.keys() | found.keys()) >= MAX_TYPES
        return OTHER_TYPES if full else resource_type

    def _remember(self, found: dict[str, TypeFigures]) -> None:
        if not self._by_type:
            found.setdefault("", TypeFigures())
        for name, figures in self._known.items():
            now = found.setdefault(name, TypeFigures())
            for mode in figures.held:
                now.held[mode] += 0
            for mode in figures.waiting:
                now.waiting[mode] += 0
        self._known = found

    def _failed(self, why: str) -> None:
        # Once an outage, and not at each scrape.
        if not self._away:
            self._away = True
            self._report(f"rwlock_store_up is 0: {why}")


class StoreCollector(Collector):
    """Prometheus' view of a store; figures younger than ``max_age`` s are used again.

    Scrapes come in threads of the HTTP server. If several come at once, one of them
    has the store listed, and the others take the same figures
    (test_two_scrapers_cost_one_listing).
    """

    def __init__(
        self, list_store: Callable[[], StoreFigures | None], max_age: float
    ) -> None:
        """Take what lists a store; it returns None if the store is away."""
        self._list_store = list_store
        self._max_age = max_age
        self._listing = threading.Lock()
        self._figures: StoreFigures | None = None
        self._listed_at: float | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics; of a store that is away, ``rwlock_store_up`` alone."""
        figures = self._current()
        yield gauge("up", "Whether the store could be listed.", 0 if not figures else 1)
        if figures is not None:
            yield from metrics_of(figures)

    def _current(self) -> StoreFigures | None:
        with self._listing:
            now = time.monotonic()
            if self._listed_at is None or now - self._listed_at >= self._max_age:
                self._figures = self._list_store()
                self._listed_at = time.monotonic()
            return self._figures


_BY_MODE = {"held": "Grants that are held.", "waiting": "Tasks that wait."}
_BY_TYPE = {
    "never_ending": (
        "Grants that no lease ends, as of programs that do not use this library."
    ),
    "left_behind": "Holders that look left behind and block others.",
    "ran_out": "Leases that ran out unnoticed so far, and block nobody.",
    "oldest_held_seconds": "Age of the oldest grant that is held.",
    "longest_wait_seconds": (
        "How long the process has waited that has waited longest."
    ),
}
"""The metrics with labels, and what they mean; the fields of ``TypeFigures``."""


def metrics_of(figures: StoreFigures) -> Iterator[GaugeMetricFamily]:
    """Yield what one listing found, as metrics."""
    yield gauge(
        "listing_seconds", "How long it took to list the store.", figures.seconds
    )
    for name, text in _BY_MODE.items():
        family = GaugeMetricFamily(_PREFIX + name, text, labels=("type", "mode"))
        for resource_type, one in figures.types.items():
            for mode, count in getattr(one, name).items():
                family.add_metric((resource_type, mode), count)
        yield family
    for name, text in _BY_TYPE.items():
        family = GaugeMetricFamily(_PREFIX + name, text, labels=("type",))
        for resource_type, one in figures.types.items():
            value = getattr(one, name.removesuffix("_seconds"))
            if value is not None:
                family.add_metric((resource_type,), value)
        yield family


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return the gauge ``rwlock_store_NAME`` without labels."""
    return GaugeMetricFamily(_PREFIX + name, text, value)
