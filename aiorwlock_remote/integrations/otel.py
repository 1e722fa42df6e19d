"""OpenTelemetry: a span for each wait for a lock, and one for holding it.

::

    from aiorwlock_remote.integrations.otel import OtelObserver

    locks = connect("redis://localhost/0", observers=[OtelObserver()])

``rwlock.acquire`` and ``rwlock.hold`` are children of the span that is current when the
lock is requested. Their attributes: ``rwlock.type``, ``rwlock.resource``,
``rwlock.mode``, ``rwlock.reason``, ``rwlock.fence``, ``rwlock.outcome`` and
``rwlock.end``. A wait that fails and a grant that is lost have the status ERROR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from opentelemetry.context import get_current
from opentelemetry.trace import Span, Status, StatusCode, TracerProvider, get_tracer

from aiorwlock_remote.locks.observers import Attempt, GrantEnd, outcome_of

__all__ = ["OtelObserver"]

_NO_ERROR: frozenset[GrantEnd] = frozenset({"released", "moved", "detached"})


@final
class OtelObserver:
    """An observer that traces each wait for a lock and each grant.

    ``tracer_provider``: OpenTelemetry's; None: the global one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("aiorwlock_remote", tracer_provider=tracer_provider)

    def asked(self, attempt: Attempt) -> _Traced:
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

        return _Traced(begin)


class _Traced:
    def __init__(self, begin: Callable[[str], Span]) -> None:
        self._begin = begin
        self._span = begin("rwlock.acquire")

    def obtained(self, resource: str, fence: int) -> None:
        self._span.set_attribute("rwlock.outcome", "obtained")
        self._span.end()
        self._span = self._begin("rwlock.hold")
        # A request for any mutex of a set learns here which one it is.
        self._span.set_attribute("rwlock.resource", resource)
        self._span.set_attribute("rwlock.fence", fence)

    def failed(self, error: BaseException | None) -> None:
        outcome = outcome_of(error)
        self._span.set_attribute("rwlock.outcome", outcome)
        # A caller that was cancelled, or only tried, has met no fault.
        if error is not None and outcome != "cancelled":
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()

    def ended(self, how: GrantEnd) -> None:
        self._span.set_attribute("rwlock.end", how)
        if how not in _NO_ERROR:
            self._span.set_status(Status(StatusCode.ERROR, f"not given back: {how}"))
        self._span.end()
