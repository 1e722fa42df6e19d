"""Tickets of ``detach`` and ``adopt``: a grant encoded as text, to be kept secret.

Adopting a ticket takes its grant over from the former holder. With a *shared* ticket,
which ``rwlock run`` makes for its command, the former holder keeps the grant, and any
number of tasks may hold it together.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from math import inf

from aiorwlock_remote.core.names import KeyPair, Resource
from aiorwlock_remote.core.text import check_reason, check_text
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.runtime.lease import Lease

_MARK = "rwl1."
_PAIR, _SHARED = "pair", "shared"
_KINDS = (), (_PAIR,), (_SHARED,), (_PAIR, _SHARED)
_TICKET = re.compile("[0-9a-f]{32}")
_DAMAGED = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError),
    *(RecursionError, ConfigurationError),
)
"""The errors that decoding a text may raise if it is no ticket."""


@dataclass(frozen=True, slots=True)
class TransferTicket:
    """Value object: a grant as one process describes it to another.

    Attributes:
        resource, mode, ticket: What identifies the grant in the store.
        lease: Seconds until the grant expires unless renewed; None: it never expires.
        lock_delay: Seconds for which the resource stays closed after the grant expired.
        reason: Why the lock is held, shown to people.
        shared: True if the process that wrote the ticket keeps the grant, and both use
            it; False if the reader takes the grant over.
    """

    resource: Resource
    mode: Mode
    ticket: str = field(repr=False)
    lease: float | None
    lock_delay: float
    reason: str
    shared: bool


def write(lease: Lease, *, shared: bool = False) -> str:
    """Encode a grant as the text for ``Locks.adopt``. ``shared``: who adopts it holds
    the grant together with its present holder, and does not take it over.
    """
    fields = [
        lease.resource.type,
        lease.resource.id,
        str(lease.mode),
        lease.ticket,
        lease.terms.lease,
        lease.lock_delay / MICROS,
        lease.who.reason,
    ]
    if isinstance(lease.resource, KeyPair):
        fields.append(_PAIR)
    if shared:
        fields.append(_SHARED)
    text = json.dumps(fields, separators=(",", ":"))
    return _MARK + base64.urlsafe_b64encode(text.encode()).decode()


def read(ticket: str) -> TransferTicket:
    """Decode a ticket made by ``write``; ``ConfigurationError`` for any other text."""
    # One error for all that can be wrong, without any part of the text: it is secret.
    refused = ConfigurationError(
        what="this is no ticket made by detach()", hint="pass it on unchanged"
    )
    mark, body = str(ticket)[: len(_MARK)], str(ticket)[len(_MARK) :]
    if mark != _MARK:
        raise refused
    try:
        fields = json.loads(base64.urlsafe_b64decode(body))
        kind, name, mode, secret, lease, delay, reason, *kinds = fields
        for text in (kind, name):
            check_text("a name", text)
        lives = lease is None or 0 < lease < inf
        if not _TICKET.fullmatch(secret) or not lives or not 0 <= delay < inf:
            raise refused
        if tuple(kinds) not in _KINDS:
            raise refused
        resource = (KeyPair if _PAIR in kinds else Resource)(kind, name)
        if resource.is_semaphore is not (Mode(mode) is Mode.PERMIT):
            raise refused
        return TransferTicket(
            resource,
            Mode(mode),
            secret,
            None if lease is None else float(lease),
            float(delay),
            check_reason(reason),
            _SHARED in kinds,
        )
    except _DAMAGED:
        raise refused from None
