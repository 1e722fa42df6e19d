"""Prometheus: who waits for locks and holds them, for how long, and what became of it.

::

    from aiorwlock_remote.integrations.prometheus import PrometheusObserver

    locks = connect("redis://localhost/0", observers=[PrometheusObserver()])

=========================================  =========  =================================
``rwlock_waiting``                         gauge      tasks that wait
``rwlock_held``                            gauge      grants that are held
``rwlock_longest_wait_timestamp_seconds``  gauge      Unix time since when the task that
                                                      has waited longest has waited;
                                                      ``+Inf``: no task waits
``rwlock_oldest_held_timestamp_seconds``   gauge      Unix time of the oldest grant that
                                                      is held; ``+Inf``: none is
``rwlock_wait_seconds``                    histogram  from the request to its
                                                      ``outcome``: obtained, busy (one
                                                      attempt only), timeout, cancelled,
                                                      or the error's name
``rwlock_hold_seconds``                    histogram  from the grant to its ``end``:
                                                      released, moved, detached,
                                                      dropped, or the reason of the loss
``rwlock_lost_total``                      counter    grants that were lost, by
                                                      ``reason``: expired, forced, …
``rwlock_renewals_total``                  counter    renewals in the background, by
                                                      ``outcome``: renewed, failed (it
                                                      is repeated), gone (the grant is
                                                      lost)
``rwlock_wakeups_total``                   counter    how often waiters asked again, or
                                                      entered, by ``cause``: message,
                                                      pushed, timer, poll
``rwlock_request_seconds``                 histogram  from a request to the store to its
                                                      reply, by ``command`` and
                                                      ``outcome``: ok, error,
                                                      unavailable
``rwlock_store_unreachable``               gauge      1 if the last request or renewal
                                                      did not reach the store, else 0
=========================================  =========  =================================

The first seven have the labels ``type`` (the resource's type, never its id) and
``mode``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import final, get_args

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    multiprocess,
)

from aiorwlock_remote.errors import LossReason
from aiorwlock_remote.integrations._measured import (
    BUCKETS,
    AttemptMeter,
    Labels,
    MeasuredAttempt,
    State,
)
from aiorwlock_remote.locks.observers import Attempt, is_unreachable
from aiorwlock_remote.runtime.lease_keeper import RenewalOutcome
from aiorwlock_remote.runtime.wait_queue import WAKE_CAUSES, WakeCause

__all__ = ["PrometheusObserver", "mark_dead_workers", "workers_registry"]

_LOSSES: frozenset[str] = frozenset(get_args(LossReason))


@final
class PrometheusObserver:
    """An observer that measures waits, grants, renewals and requests to the store.

    Make one for a process and pass it to every ``connect(…)``: each observer makes its
    own metrics, and a registry refuses a second metric of the same name.

    If ``PROMETHEUS_MULTIPROC_DIR`` is set, the figures are those of all worker
    processes together: see ``workers_registry``.

    Args:
        registry: Prometheus' registry for the metrics.
        prefix: Begins the metrics' names.
        buckets: Upper bounds of the histograms' buckets, in seconds.

    Raises:
        ValueError: the registry has metrics of these names.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        prefix: str = "rwlock",
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        labels = ("type", "mode")
        gauge = partial(Gauge, namespace=prefix, registry=registry)
        # With several workers, what a killed one held must not count for ever: only
        # the ``live…`` modes forget a process (``mark_dead_workers``).
        total = partial(gauge, labelnames=labels, multiprocess_mode="livesum")
        least = partial(gauge, labelnames=labels, multiprocess_mode="livemin")
        counter = partial(Counter, namespace=prefix, registry=registry)
        seconds = partial(
            Histogram, namespace=prefix, registry=registry, buckets=buckets
        )
        self.waiting: Gauge = total("waiting", "Tasks that wait for a lock.")
        self.held: Gauge = total("held", "Locks that are held.")
        self.longest_wait: Gauge = least(
            "longest_wait_timestamp_seconds",
            "Unix time since when the longest wait lasts; +Inf: no task waits.",
        )
        self.oldest_held: Gauge = least(
            "oldest_held_timestamp_seconds",
            "Unix time of the oldest grant that is held; +Inf: none is held.",
        )
        self.wait: Histogram = seconds(
            "wait_seconds",
            "From asking for a lock to the outcome.",
            (*labels, "outcome"),
        )
        self.hold: Histogram = seconds(
            "hold_seconds", "From obtaining a lock to its end.", (*labels, "end")
        )
        self.lost: Counter = counter(
            "lost", "Grants that were lost.", (*labels, "reason")
        )
        self.renewals: Counter = counter(
            "renewals", "Renewals in the background, counted by grant.", ("outcome",)
        )
        self.wakeups: Counter = counter(
            "wakeups", "How often tasks that wait asked again, or entered.", ("cause",)
        )
        self.request: Histogram = seconds(
            "request_seconds",
            "From sending a request to the store to its reply.",
            ("command", "outcome"),
        )
        # Not "reachable": a worker that was forked and has sent nothing reports 0.
        self.unreachable: Gauge = gauge(
            "store_unreachable",
            "1 if the last request or renewal did not reach the store.",
            multiprocess_mode="livemax",
        )
        # Series that are there from the start: to Prometheus, a counter that appears
        # with the value 1 has not increased.
        for outcome in get_args(RenewalOutcome):
            self.renewals.labels(outcome)
        for cause in WAKE_CAUSES:
            self.wakeups.labels(cause)
        self._request = cache(self.request.labels)
        self._meter = _Meter(self)

    def asked(self, attempt: Attempt) -> MeasuredAttempt:
        return self._meter.follow(attempt)

    def replied(
        self, command: str, seconds: float, error: BaseException | None
    ) -> None:
        unreachable = is_unreachable(error)
        outcome = "ok" if error is None else "error"
        if unreachable:
            outcome = "unavailable"
        self._request(command, outcome).observe(seconds)
        self.unreachable.set(unreachable)

    def renewed(
        self, outcome: RenewalOutcome, grants: int, error: BaseException | None
    ) -> None:
        self.renewals.labels(outcome).inc(grants)
        self.unreachable.set(is_unreachable(error))

    def woken(self, cause: WakeCause) -> None:
        self.wakeups.labels(cause).inc()


class _Meter(AttemptMeter):
    def __init__(self, metrics: PrometheusObserver) -> None:
        super().__init__()
        self._metrics = metrics
        # Types are few; to look up the series of a label by its values costs more than
        # to count.
        self._number = cache(self._number_of)
        self._since = cache(self._since_of)
        self._duration = cache(self._duration_of)

    def count(self, state: State, labels: Labels, change: int) -> None:
        self._number(state, labels).inc(change)

    def lasted(self, state: State, labels: Labels, seconds: float, how: str) -> None:
        self._duration(state, labels, how).observe(seconds)
        if state == "held" and how in _LOSSES:
            self._metrics.lost.labels(*labels, how).inc()

    def oldest_changed(self, state: State, labels: Labels, since: float | None) -> None:
        # A time and not an age: what Prometheus computes from it is right at each
        # scrape, without a timer, and over all workers.
        self._since(state, labels).set(math.inf if since is None else since)

    def reset(self, state: State, labels: Labels, attempts: int) -> None:
        del attempts  # with several workers, the gauges of each process begin at 0
        self._number(state, labels).set(0)
        self.oldest_changed(state, labels, None)

    def _number_of(self, state: State, labels: Labels) -> Gauge:
        metrics = self._metrics
        if state == "held":
            for reason in _LOSSES:
                metrics.lost.labels(*labels, reason)
        return (metrics.waiting if state == "waiting" else metrics.held).labels(*labels)

    def _duration_of(self, state: State, labels: Labels, how: str) -> Histogram:
        metrics = self._metrics
        histogram = metrics.wait if state == "waiting" else metrics.hold
        return histogram.labels(*labels, how)

    def _since_of(self, state: State, labels: Labels) -> Gauge:
        metrics = self._metrics
        waiting = state == "waiting"
        gauge = metrics.longest_wait if waiting else metrics.oldest_held
        return gauge.labels(*labels)


# ------------------------------------------------------------ several worker processes


def workers_registry(folder: str | os.PathLike[str] | None = None) -> CollectorRegistry:
    """Return a registry with the metrics of all worker processes, for one scrape.

    Gauges of processes that no longer run are removed first, so nothing need be called
    when a worker is killed.

    Args:
        folder: where the workers keep their figures; None: what the environment names
            as ``PROMETHEUS_MULTIPROC_DIR``. Empty it before the server starts.

    Raises:
        ValueError: there is no such folder.
    """
    where = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "") if folder is None else folder
    registry = CollectorRegistry()
    path = os.fspath(where)
    multiprocess.MultiProcessCollector(registry, path)  # type: ignore[no-untyped-call]
    mark_dead_workers(where)
    return registry


def mark_dead_workers(folder: str | os.PathLike[str]) -> None:
    """Remove the gauges of worker processes that no longer run.

    ``folder``: the value of ``PROMETHEUS_MULTIPROC_DIR``. All workers, and the process
    that calls this, have to be of one PID namespace, as in one container.
    """
    where = os.fspath(folder)
    for path in Path(where).glob("gauge_live*_*.db"):
        number = path.stem.rpartition("_")[2]
        if number.isdigit() and not _runs(int(number)):
            # Another worker may be scraped, and remove them, at the same time.
            with suppress(FileNotFoundError):
                multiprocess.mark_process_dead(number, where)  # type: ignore[no-untyped-call]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user
        return True
    return True
