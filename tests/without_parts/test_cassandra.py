"""cassandra-driver without the private parts of a connection that are used."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from cassandra.connection import Connection
from cassandra.segment import SegmentCodec

from aiorwlock_remote import connect
from aiorwlock_remote.backends.cassandra import driver_parts
from aiorwlock_remote.backends.cassandra.connection import CACHED_SEGMENTS
from tests.backends.cassandra.conftest import furnish
from tests.servers.cassandra_ring import Visit
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.without_parts.locking import differing, exclude_and_hand_over


class Longer(SegmentCodec):  # type: ignore[misc] # it has no types
    """A codec of another driver."""

    def encode(self, buffer: BytesIO, msg: bytes) -> None:
        super().encode(buffer, msg + b"\0")


def test_the_driver_that_is_installed_has_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert driver_parts.reactor_fits()
    assert driver_parts.codec_fits(CACHED_SEGMENTS)
    assert differing(caplog) == []


@pytest.mark.parametrize("part", [*driver_parts._USED, "_iobuf", "process_io_buffer"])
def test_each_part_is_missed(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(_: object) -> None:
        raise AttributeError(f"Connection has no {part}")

    # A property of the probe hides what an instance, or the driver's class, has.
    hidden = property(gone, lambda *_: None)
    monkeypatch.setattr(driver_parts._Probe, part, hidden, raising=False)
    for _ in range(2):
        assert not driver_parts.reactor_fits()
    (reported,) = differing(caplog)
    assert part in reported


def test_a_buffer_that_is_read_in_another_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_parts._Probe, "_iobuf", BytesIO(), raising=False)
    assert not driver_parts.reactor_fits()
    assert differing(caplog) == ["Connection (LookupError: process_io_buffer)"]


def test_requests_that_are_kept_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Probe(driver_parts._Probe):
        def send_msg(self, *args: Any, **kwargs: Any) -> int:  # noqa: ANN401 - theirs
            size = super().send_msg(*args, **kwargs)
            self.elsewhere, self._requests = self._requests, {}
            return size

    monkeypatch.setattr(driver_parts, "_Probe", Probe)
    assert not driver_parts.reactor_fits()
    assert differing(caplog) == ["Connection (LookupError: _requests)"]


def test_segments_that_are_written_in_another_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not driver_parts.codec_fits(Longer())
    assert differing(caplog) == ["SegmentCodec (LookupError: encode)"]
    monkeypatch.delattr(Connection, "_enable_checksumming")
    driver_parts.codec_fits.cache_clear()
    assert not driver_parts.codec_fits(CACHED_SEGMENTS)
    assert "_enable_checksumming" in differing(caplog)[-1]


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("part", ["reactor", "codec"])
async def test_locks_over_another_driver(
    part: str,
    cassandra_node: SharedNode,
    cassandra_visit: Visit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Over its own reactor, or its own codec, on asyncio and on trio."""
    if part == "reactor":
        used = (*driver_parts._USED, "_renamed")
        monkeypatch.setattr(driver_parts, "_USED", used)
    else:
        monkeypatch.setattr(driver_parts, "SegmentCodec", Longer)
    with fresh_keyspace(cassandra_node, cassandra_visit) as keyspace:
        url = f"{furnish(keyspace, 'pair').url}?request_timeout=20"
        async with connect(url) as one, connect(url) as other:
            await exclude_and_hand_over(one, other)
    assert len(differing(caplog)) == 1
    assert driver_parts.reactor_fits() is (part == "codec")
