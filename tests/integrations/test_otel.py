"""Traces: a span for each wait and each grant, beneath whoever asks; and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from aiorwlock_remote import BackendUnavailable, LockLost, Locks, connect
from aiorwlock_remote.integrations.otel import OtelObserver
from tests.integrations.attempts import fail_thrice

pytestmark = pytest.mark.anyio


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def observer(provider: TracerProvider, reader: InMemoryMetricReader) -> OtelObserver:
    meter_provider = MeterProvider([reader], shutdown_on_exit=False)
    return OtelObserver(provider, meter_provider=meter_provider)


@pytest.fixture
async def locks(observer: OtelObserver, tmp_path: Path) -> AsyncIterator[Locks]:
    observers = [observer]
    async with connect(f"memory://{tmp_path.name}", observers=observers) as locks:
        yield locks


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Without the prefix they all have."""
    found = span.attributes or {}
    return {name.removeprefix("rwlock."): found[name] for name in found}


async def test_a_block(
    locks: Locks, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("refund") as refund:
        async with locks.mutex("order", 1).acquire(reason="why") as held:
            fence = held.fence
    wait, hold, _ = exported.get_finished_spans()
    assert [wait.name, hold.name] == ["rwlock.acquire", "rwlock.hold"]
    same = {"type": "order", "resource": "order/1", "mode": "write", "reason": "why"}
    assert attributes(wait) == {**same, "outcome": "obtained"}
    assert attributes(hold) == {**same, "fence": fence, "end": "released"}
    for span in (wait, hold):
        assert span.parent == refund.get_span_context()
        assert span.status.is_unset
    assert wait.end_time is not None
    assert hold.start_time is not None
    assert wait.end_time <= hold.start_time


async def test_an_attempt_without_a_grant(
    locks: Locks, exported: InMemorySpanExporter
) -> None:
    await fail_thrice(locks.mutex("order", 1))
    _, busy, timeout, cancelled, _ = exported.get_finished_spans()
    for span, outcome, failed in (
        (busy, "busy", False),
        (timeout, "timeout", True),
        (cancelled, "cancelled", False),
    ):
        assert attributes(span)["outcome"] == outcome
        assert (span.status.status_code is StatusCode.ERROR) is failed
    assert "order/1" in (timeout.status.description or "")
    assert [event.name for event in timeout.events] == ["exception"]


async def test_a_loss(locks: Locks, exported: InMemorySpanExporter) -> None:
    mutex = locks.mutex("order", 1)
    with pytest.raises(LockLost):
        async with mutex:
            await locks.force_release(await mutex.info(), reason="test")
    *_, hold = exported.get_finished_spans()
    assert attributes(hold)["end"] == "forced"
    assert hold.status.status_code is StatusCode.ERROR
    assert "forced" in (hold.status.description or "")


# -------------------------------------------------------------------------- metrics


def points(reader: InMemoryMetricReader) -> dict[str, tuple[str | None, list[Any]]]:
    """The unit and the data points of each metric, collected now."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: (metric.unit, list(metric.data.data_points))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def numbers(reader: InMemoryMetricReader, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, or its counts, by the values of its attributes."""
    _, found = points(reader).get(name, ("", []))
    return {
        tuple(map(str, point.attributes.values())): getattr(
            point, "value", getattr(point, "count", 0)
        )
        for point in found
    }


ORDER = "order", "write"


async def test_the_current_gauges(locks: Locks, reader: InMemoryMetricReader) -> None:
    mutex = locks.mutex("order", 1)

    async def wait() -> None:
        await mutex.acquire()

    async with mutex, anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        found = points(reader)
        for name in ("rwlock.held", "rwlock.waiting"):
            (point,) = found[name][1]
            assert point.attributes == {"rwlock.type": "order", "rwlock.mode": "write"}
            assert point.value == 1
        for name in ("rwlock.oldest_held", "rwlock.longest_wait"):
            unit, (point,) = found[name]
            assert unit == "s"
            assert 0 < point.value < 60
        tasks.cancel_scope.cancel()
    assert numbers(reader, "rwlock.held") == {ORDER: 0}
    assert numbers(reader, "rwlock.waiting") == {ORDER: 0}
    assert numbers(reader, "rwlock.oldest_held") == {}
    assert numbers(reader, "rwlock.longest_wait") == {}
    assert numbers(reader, "rwlock.store.unreachable") == {(): 0}


async def test_durations_of_attempts(
    locks: Locks, reader: InMemoryMetricReader
) -> None:
    await fail_thrice(locks.mutex("order", 1))
    outcomes = ("busy", "timeout", "cancelled", "obtained")
    waits = numbers(reader, "rwlock.wait.duration")
    assert waits == {(*ORDER, outcome): 1 for outcome in outcomes}
    assert numbers(reader, "rwlock.hold.duration") == {(*ORDER, "released"): 1}
    requests = numbers(reader, "rwlock.request.duration")
    assert requests[("Release",)] == 1
    unit, (hold,) = points(reader)["rwlock.hold.duration"]
    assert unit == "s"
    assert hold.explicit_bounds[0] == 0.001  # of the metric, unless a view says else


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_failed_requests_are_counted(
    observer: OtelObserver, reader: InMemoryMetricReader
) -> None:
    away = BackendUnavailable(what="away")
    observer.replied("Acquire", 0.1, away)
    assert numbers(reader, "rwlock.request.duration") == {
        ("Acquire", "BackendUnavailable"): 1
    }
    assert numbers(reader, "rwlock.store.unreachable") == {(): 1}
    observer.renewed("failed", 2, away)
    assert numbers(reader, "rwlock.store.unreachable") == {(): 1}
    observer.renewed("renewed", 3, None)
    observer.woken("poll")
    assert numbers(reader, "rwlock.wakeups") == {("poll",): 1}
    assert numbers(reader, "rwlock.renewals") == {
        ("failed", "BackendUnavailable"): 2,
        ("renewed",): 3,
    }
    assert numbers(reader, "rwlock.store.unreachable") == {(): 0}
