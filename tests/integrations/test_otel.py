"""Traces: a span for each wait and one for each grant, beneath whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from aiorwlock_remote import LockLost, Locks, connect
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
async def locks(provider: TracerProvider, tmp_path: Path) -> AsyncIterator[Locks]:
    observers = [OtelObserver(provider)]
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


async def test_what_is_not_obtained(
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
