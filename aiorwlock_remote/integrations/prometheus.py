"""Prometheus: how long tasks wait for locks, and how long they hold them.

::

    from aiorwlock_remote.integrations.prometheus import PrometheusObserver

    locks = connect("redis://localhost/0", observers=[PrometheusObserver()])

=======================  =========  ==================================================
``rwlock_waiting``       gauge      tasks that wait
``rwlock_held``          gauge      grants that are held
``rwlock_wait_seconds``  histogram  from the request to its ``outcome``: obtained, busy
                                    (one attempt only), timeout, cancelled, or the
                                    error's name
``rwlock_hold_seconds``  histogram  from the grant to its ``end``: released, moved,
                                    detached, dropped, or the reason of the loss
                                    (expired, forced, …)
=======================  =========  ==================================================

All have the labels ``type`` (the resource's type, never its id) and ``mode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import final

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram

from aiorwlock_remote.locks.observers import Attempt, GrantEnd, outcome_of

__all__ = ["PrometheusObserver"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
"""Upper bounds of the histograms' buckets, in seconds."""


@final
class PrometheusObserver:
    """An observer that measures each wait for a lock and each grant.

    Make one for a process and pass it to every ``connect(…)``: each observer makes its
    own metrics, and a registry refuses a second metric of the same name.

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
        # Never the id: a label with a value for each resource would fill Prometheus'
        # memory.
        labels = ("type", "mode")
        gauge = partial(Gauge, labelnames=labels, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=buckets)
        self.waiting: Gauge = gauge(f"{prefix}_waiting", "Tasks that wait for a lock.")
        self.held: Gauge = gauge(f"{prefix}_held", "Locks that are held.")
        self.wait: Histogram = histogram(
            f"{prefix}_wait_seconds",
            "From asking for a lock to the outcome.",
            (*labels, "outcome"),
        )
        self.hold: Histogram = histogram(
            f"{prefix}_hold_seconds",
            "From obtaining a lock to its end.",
            (*labels, "end"),
        )

    def asked(self, attempt: Attempt) -> _Timed:
        return _Timed(self, attempt.resource_type, attempt.mode)


class _Timed:
    def __init__(self, metrics: PrometheusObserver, *labels: str) -> None:
        self._metrics = metrics
        self._labels = labels
        self._since = perf_counter()
        metrics.waiting.labels(*labels).inc()

    def obtained(self, resource: str, fence: int) -> None:
        del resource, fence
        self._waited("obtained")
        self._metrics.held.labels(*self._labels).inc()

    def failed(self, error: BaseException | None) -> None:
        self._waited(outcome_of(error))

    def ended(self, how: GrantEnd) -> None:
        self._metrics.held.labels(*self._labels).dec()
        seconds = perf_counter() - self._since
        self._metrics.hold.labels(*self._labels, how).observe(seconds)

    def _waited(self, outcome: str) -> None:
        now = perf_counter()
        self._metrics.waiting.labels(*self._labels).dec()
        self._metrics.wait.labels(*self._labels, outcome).observe(now - self._since)
        # The hold is measured from the end of the wait.
        self._since = now
