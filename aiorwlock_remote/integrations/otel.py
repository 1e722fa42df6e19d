"""OpenTelemetry: spans and metrics of waiting for locks and holding them.

::

    from aiorwlock_remote.integrations.otel import OtelObserver

    locks = connect("redis://localhost/0", observers=[OtelObserver()])

The spans ``rwlock.acquire`` and ``rwlock.hold`` are children of the span that is
current when the lock is requested. Their attributes: ``rwlock.type``,
``rwlock.resource``, ``rwlock.mode``, ``rwlock.reason``, ``rwlock.fence``,
``rwlock.outcome`` and ``rwlock.end``. A wait that fails and a grant that is lost have
the status ERROR.

=============================  ===============  =======================================
``rwlock.waiting``             up-down counter  tasks that wait
``rwlock.held``                up-down counter  grants that are held
``rwlock.wait.duration``       histogram        seconds from the request to its
                                                ``rwlock.outcome``
``rwlock.hold.duration``       histogram        seconds from the grant to its
                                                ``rwlock.end``
``rwlock.longest_wait``        gauge            seconds that the longest wait lasts now
``rwlock.oldest_held``         gauge            age in seconds of the oldest grant
``rwlock.renewals``            counter          renewals in the background, by
                                                ``rwlock.outcome``
``rwlock.wakeups``             counter          how often waiters asked again, or
                                                entered, by ``rwlock.cause``
``rwlock.request.duration``    histogram        seconds from a request to the store to
                                                its reply, by ``rwlock.command``
``rwlock.store.unreachable``   gauge            1 if the last request or renewal did
                                                not reach the store, else 0
=============================  ===============  =======================================

The first six have the attributes ``rwlock.type`` and ``rwlock.mode``. A failed request
or renewal has the attribute ``error.type``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import final

from opentelemetry.context import get_current
from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    MeterProvider,
    Observation,
    get_meter,
)
from opentelemetry.trace import Span, Status, StatusCode, TracerProvider, get_tracer

from aiorwlock_remote.integrations._measured import (
    BUCKETS,
    AttemptMeter,
    Labels,
    MeasuredAttempt,
    State,
)
from aiorwlock_remote.locks.observers import (
    Attempt,
    GrantEnd,
    is_unreachable,
    outcome_of,
)
from aiorwlock_remote.runtime.lease_keeper import RenewalOutcome
from aiorwlock_remote.runtime.wait_queue import WakeCause

__all__ = ["OtelObserver"]

_NAME = "aiorwlock_remote"
_NO_ERROR: frozenset[GrantEnd] = frozenset({"released", "moved", "detached"})


@final
class OtelObserver:
    """An observer that traces and measures each wait for a lock and each grant.

    Args:
        tracer_provider: OpenTelemetry's, for the spans; None: the global one.
        meter_provider: OpenTelemetry's, for the metrics; None: the global one.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = get_tracer(_NAME, tracer_provider=tracer_provider)
        self._meter = _Meter(meter_provider)

    def asked(self, attempt: Attempt) -> _Observed:
        attributes = {
            "rwlock.type": attempt.resource_type,
            "rwlock.resource": attempt.resource,
            "rwlock.mode": attempt.mode,
        }
        # An empty attribute would look like a reason that was given.
        if attempt.reason:
            attributes["rwlock.reason"] = attempt.reason
        context = get_current()

        def begin(name: str) -> Span:
            return self._tracer.start_span(name, context, attributes=attributes)

        return _Observed(begin, self._meter.follow(attempt))

    def replied(
        self, command: str, seconds: float, error: BaseException | None
    ) -> None:
        attributes = {"rwlock.command": command, **_error_type(error)}
        self._meter.request.record(seconds, attributes)
        self._meter.unreachable = is_unreachable(error)

    def renewed(
        self, outcome: RenewalOutcome, grants: int, error: BaseException | None
    ) -> None:
        attributes = {"rwlock.outcome": outcome, **_error_type(error)}
        self._meter.renewals.add(grants, attributes)
        self._meter.unreachable = is_unreachable(error)

    def woken(self, cause: WakeCause) -> None:
        self._meter.wakeups.add(1, {"rwlock.cause": cause})


class _Observed:
    def __init__(self, begin: Callable[[str], Span], measured: MeasuredAttempt) -> None:
        self._begin = begin
        self._measured = measured
        self._span = begin("rwlock.acquire")

    def obtained(self, resource: str, fence: int) -> None:
        self._measured.obtained(resource, fence)
        self._span.set_attribute("rwlock.outcome", "obtained")
        self._span.end()
        self._span = self._begin("rwlock.hold")
        # A request for any mutex of a set learns here which one it is.
        self._span.set_attribute("rwlock.resource", resource)
        self._span.set_attribute("rwlock.fence", fence)

    def failed(self, error: BaseException | None) -> None:
        self._measured.failed(error)
        outcome = outcome_of(error)
        self._span.set_attribute("rwlock.outcome", outcome)
        # A caller that was cancelled, or only tried, has met no fault.
        if error is not None and outcome != "cancelled":
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()

    def ended(self, how: GrantEnd) -> None:
        self._measured.ended(how)
        self._span.set_attribute("rwlock.end", how)
        if how not in _NO_ERROR:
            self._span.set_status(Status(StatusCode.ERROR, f"not given back: {how}"))
        self._span.end()


class _Meter(AttemptMeter):
    def __init__(self, provider: MeterProvider | None) -> None:
        super().__init__()
        self.unreachable: bool = False
        meter = get_meter(_NAME, meter_provider=provider)

        def histogram(name: str, text: str) -> Histogram:
            return meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS
            )

        def ages(name: str, state: State, text: str) -> None:
            observe = partial(self._observe_ages, state)
            meter.create_observable_gauge(name, [observe], "s", text)

        self._numbers = {
            "waiting": meter.create_up_down_counter(
                "rwlock.waiting", "{task}", "Tasks that wait for a lock."
            ),
            "held": meter.create_up_down_counter(
                "rwlock.held", "{lock}", "Locks that are held."
            ),
        }
        self._durations = {
            "waiting": histogram(
                "rwlock.wait.duration", "From asking for a lock to the outcome."
            ),
            "held": histogram(
                "rwlock.hold.duration", "From obtaining a lock to its end."
            ),
        }
        self.request = histogram(
            "rwlock.request.duration",
            "From sending a request to the store to its reply.",
        )
        self.renewals = meter.create_counter(
            "rwlock.renewals", "{renewal}", "Renewals in the background."
        )
        self.wakeups = meter.create_counter(
            "rwlock.wakeups", "{wakeup}", "How often waiters asked again, or entered."
        )
        ages("rwlock.longest_wait", "waiting", "How long the longest wait lasts now.")
        ages("rwlock.oldest_held", "held", "Age of the oldest lock that is held now.")
        meter.create_observable_gauge(
            "rwlock.store.unreachable",
            [lambda _: [Observation(int(self.unreachable))]],
            "1",
            "1 if the last request or renewal did not reach the store.",
        )

    def count(self, state: State, labels: Labels, change: int) -> None:
        self._numbers[state].add(change, _attributes(labels))

    def lasted(self, state: State, labels: Labels, seconds: float, how: str) -> None:
        attributes = _attributes(labels)
        attributes["rwlock.outcome" if state == "waiting" else "rwlock.end"] = how
        self._durations[state].record(seconds, attributes)

    def oldest_changed(self, state: State, labels: Labels, since: float | None) -> None:
        pass  # read when the metrics are collected

    def reset(self, state: State, labels: Labels, attempts: int) -> None:
        self.count(state, labels, -attempts)

    def _observe_ages(
        self, state: State, options: CallbackOptions
    ) -> Iterable[Observation]:
        del options
        for labels, seconds in self.ages(state).items():
            yield Observation(seconds, _attributes(labels))


def _attributes(labels: Labels) -> dict[str, str]:
    return {"rwlock.type": labels[0], "rwlock.mode": labels[1]}


def _error_type(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"error.type": type(error).__name__}
