"""The parser of hiredis, after a check that it keeps pushes and replies apart."""

from __future__ import annotations

from functools import cache
from typing import Any

import hiredis

from aiorwlock_remote._util.private_parts import no_public_way

MORE = object()
"""What ``gets()`` returns if the reply is not complete."""
_PUSH = b">2\r\n+message\r\n+x\r\n"

Push: Any = getattr(hiredis, "PushNotification", None)
"""Class of the pushes of RESP3, which the documentation of hiredis does not name."""


PARSE_FAILURES = hiredis.ProtocolError, MemoryError, TypeError
"""What ``gets()`` raises for what no server sends: ``TypeError`` for a map whose key is
a map, ``MemoryError`` for a list of four thousand million items."""


def next_reply(reader: hiredis.Reader) -> Any:  # noqa: ANN401 - not decoded
    """Return the next reply, or ``MORE``.

    Raises:
        ProtocolError: what was read is not RESP.
    """
    try:
        return reader.gets()
    except PARSE_FAILURES as exc:
        raise hiredis.ProtocolError(str(exc)) from exc


def new_reader() -> hiredis.Reader:
    """Return a parser.

    Raises:
        Unsupported: This hiredis parses a push like a reply, which would then resolve
            the wrong call.
    """
    if not tells_pushes():
        raise no_public_way("hiredis", "PushNotification", "hiredis 3.2 to 3.5")
    return hiredis.Reader(notEnoughData=MORE)


@cache
def tells_pushes() -> bool:
    """Return True if a push is parsed as one. It is checked once per process."""
    reader = hiredis.Reader(notEnoughData=MORE)
    reader.feed(_PUSH)
    push: Any = reader.gets()
    return Push is not None and type(push) is Push and list(push) == [b"message", b"x"]
