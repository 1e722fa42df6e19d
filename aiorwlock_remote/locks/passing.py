"""Tickets for ``detach``/``adopt``: a grant as opaque text. Secret, like the grant."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from math import inf

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pair import Pair
from aiorwlock_remote.core.shown import check_text
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.runtime.lease import Lease

_MARK = "rwl1."
_PAIR = "pair"
_TICKET = re.compile("[0-9a-f]{32}")
_DAMAGED = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError),
    *(RecursionError, ConfigurationError),
)
"""What reading something else may raise."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A grant on its way to another owner. ``lease`` in seconds."""

    resource: Resource
    mode: Mode
    ticket: str = field(repr=False)
    fence: int
    lease: float | None


def write(lease: Lease) -> str:
    """The ticket of a lease."""
    fields = [
        lease.resource.type,
        lease.resource.id,
        str(lease.mode),
        lease.ticket,
        lease.fence,
        lease.terms.lease,
    ]
    if isinstance(lease.resource, Pair):
        fields.append(_PAIR)
    text = json.dumps(fields, separators=(",", ":"))
    return _MARK + base64.urlsafe_b64encode(text.encode()).decode()


def read(ticket: str) -> Passed:
    """What a ticket stands for.

    Raises:
        ConfigurationError: not made by ``detach``.
    """
    refused = ConfigurationError(
        what="this is no ticket made by detach()", hint="pass it on unchanged"
    )
    mark, body = str(ticket)[: len(_MARK)], str(ticket)[len(_MARK) :]
    if mark != _MARK:
        raise refused
    try:
        kind, name, mode, secret, fence, lease, *more = json.loads(
            base64.urlsafe_b64decode(body)
        )
        made = {(): Resource, (_PAIR,): Pair}[tuple(more)]
        for text in (kind, name):
            check_text("a name", text)
        if not _TICKET.fullmatch(secret) or not (lease is None or 0 < lease < inf):
            raise refused
        return Passed(
            made(kind, name),
            Mode(mode),
            secret,
            int(fence),
            None if lease is None else float(lease),
        )
    except _DAMAGED:
        raise refused from None
