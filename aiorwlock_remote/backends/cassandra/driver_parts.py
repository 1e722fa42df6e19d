"""Checks of the private parts of cassandra-driver on which ``ReadConnection`` stands.

A connection that is not connected says a request and is given its answer: half a
millisecond, once per process. Where a part is missing or behaves in another way, the
driver's own reactor or segment codec does the work.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO

from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.backends.cassandra.driver import (
    Connection,
    OptionsMessage,
    SegmentCodec,
)

PROTOCOL = 5

_LIBRARY = "cassandra-driver"
_READY = b"\x85\x00%b\x02\x00\x00\x00\x00"
"""A frame of the server, without its stream: its two bytes."""
_USED = (
    *("_connect_socket", "_enable_checksumming", "_send_options_message", "_socket"),
    *("connected_event", "defunct", "endpoint", "error_all_requests", "is_closed"),
    *("is_defunct", "lock", "ssl_context"),
)
"""Attributes that ``ReadConnection`` uses and the conversation does not."""


class _Probe(Connection):
    # A connection without a socket.
    def __init__(self) -> None:
        super().__init__(protocol_version=PROTOCOL, compression=False)
        self.sent = b""

    def push(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        pass

    def converse(
        self, codec: SegmentCodec | None = None, expected: bytes | None = None
    ) -> bytes:
        # Returns what was sent; raises if that is not ``expected``, or if the answer
        # does not come out again.
        if codec is not None:
            self._enable_checksumming()
            self._segment_codec = codec
        number, answers = self.get_request_id(), list[object]()
        self.send_msg(OptionsMessage(), number, answers.append)
        if number not in self._requests:
            raise LookupError("_requests")
        answer = BytesIO()
        frame = _READY % number.to_bytes(2, "big")
        if codec is None:
            answer.write(frame)
        else:
            SegmentCodec().encode(answer, frame)
        self._iobuf.write(answer.getvalue())
        self.process_io_buffer()
        if number in self._requests:
            raise LookupError("process_io_buffer")
        if expected not in {None, self.sent}:
            raise LookupError("encode")
        (found,) = answers
        if isinstance(found, Exception):
            raise found
        return self.sent


@cache
def reactor_fits() -> bool:
    """Return True if our connections can be the driver's; log it if not."""
    try:
        probe = _Probe()
        for name in _USED:
            getattr(probe, name)
        probe.converse()
    except Exception as exc:  # noqa: BLE001 - whatever a part says that differs
        instead = "its own reactor, in a thread: each request costs two switches more"
        report_differing(_LIBRARY, f"Connection ({_shown(exc)})", instead)
        return False
    return True


@cache
def codec_fits(codec: SegmentCodec) -> bool:
    """Return True if ``codec`` can stand in for the driver's; log it if not."""
    try:
        _Probe().converse(codec, _Probe().converse(SegmentCodec()))
    except Exception as exc:  # noqa: BLE001 - as above
        instead = "its own codec: each header's checksum is computed anew"
        report_differing(_LIBRARY, f"SegmentCodec ({_shown(exc)})", instead)
        return False
    return True


def _shown(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())
