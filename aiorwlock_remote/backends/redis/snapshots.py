"""Decodes the stored state of a resource.

``lua/record.lua`` documents its fields, ``lua/permits_record.lua`` a semaphore's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from aiorwlock_remote.backends.redis.codec import (
    MODES,
    PARSE_ERRORS,
    endings_of,
    grant_of,
    who_of,
)
from aiorwlock_remote.backends.redis.connection.protocol import Raw
from aiorwlock_remote.core.codec import UPGRADE
from aiorwlock_remote.core.doorman import (
    Doorman,
    Extra,
    Grant,
    MutexRecord,
    PendingUpgrade,
    QueueEntry,
)
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import one_line
from aiorwlock_remote.core.ticket import PERMITS, Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.ports import ForeignHolder, Snapshot

T = TypeVar("T")

VERSION = "1"
_MAX_DIGITS = 17
"""Numbers are shorter: they are microseconds below 2**53."""
_READER, _PERMIT, _PLACE = "reader:", "permit:", "place:"
_CLAIM = re.compile(r',"([^"\\]+)",([0-9]+),"[0-9A-Fa-f]+"\]$')
"""How the description of a waiting writer ends if its entry has a claim."""
_SCALARS = (
    *("last", "number", "admit_upto", "admit_until", "turns", "barred_until"),
    *("created", "updated"),
)
_KNOWN = {
    *("v", "seat", "writer", "upgrader", "endings", "upgraded", "pushed"),
    *("queue", "keep", "limits", "readers", "was", "plain"),
}


def decode_look(resource: Resource, raw: Raw) -> Snapshot:
    """Return the state of ``resource`` from the answer of the script ``look``.

    Raises:
        BadRecord: What is stored was not written by this library, or is damaged.
    """
    now, value, ends, flat_state, queue, readers, *members = raw
    state = _pairs(flat_state)
    try:
        record = _record(state, queue, _pairs(readers))
    except _Damaged as exc:
        raise BadRecord(
            what=f"{resource.label}: {exc} is damaged",
            hint="another program, or a newer version of this library, wrote there",
        ) from exc
    was = state.get("was")
    if members:
        return _pair(resource, record, value, ends, members[0], now, was)
    seat = None
    if value is not None:
        text, expires = _text(value), None if ends < 0 else ends * 1000
        if text != was or text == record.seat:
            seat = MutexRecord(text, expires)
        elif record.seat is not None:
            # The step that changed the key was stopped before it did; the next does.
            seat = MutexRecord(record.seat, record.ends)
    return Snapshot(resource, record, seat, now, now)


class _Damaged(Exception):
    """Raised when a stored field cannot be read; names the field and its key."""


def _read(name: str, function: Callable[..., T], *args: object) -> T:
    try:
        return function(*args)
    except PARSE_ERRORS as exc:
        raise _Damaged(name) from exc


def _pair(
    resource: Resource,
    record: Doorman,
    writer: bytes | None,
    ends: int,
    members: list[bytes],
    now: int,
    was: str | None,
) -> Snapshot:
    there = {_text(member) for member in members}
    grants = tuple(
        grant
        for grant in record.grants
        if grant.mode is Mode.WRITE or grant.ticket in there
    )
    ours = {grant.ticket for grant in grants}
    guests = [ForeignHolder(value, Mode.READ) for value in sorted(there - ours)]
    seat = MutexRecord("r") if record.seat == "r" and there else None
    if writer is not None:
        value, expires = _text(writer), None if ends < 0 else ends * 1000
        if record.seat == f"w{value}":
            seat = MutexRecord(f"w{value}", expires)
        elif was == f"w{value}":  # as in decode_look
            if record.seat is not None:
                seat = MutexRecord(record.seat, record.ends)
        else:
            guests.append(ForeignHolder(value, Mode.WRITE, expires))
    record = replace(record, grants=grants)
    return Snapshot(resource, record, seat, now, now, tuple(guests))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _pairs(flat: list[bytes]) -> dict[str, str]:
    # Bytes that are no text cannot be a number or a queue entry either: the error is
    # raised where the field is read, which has a name for it.
    texts = [item.decode(errors="replace") for item in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS):
        raise ValueError("no number")
    return int(text)


def _record(
    state: dict[str, str], queue: list[bytes], readers: dict[str, str]
) -> Doorman:
    # The scripts clear a field by writing an empty text.
    fields = {name: text for name, text in state.items() if text}
    version = fields.get("v")
    # Without any field of ours it is an empty record. Fields that we do not know are
    # kept as they are (test_unknown_fields_alone_are_an_empty_record).
    if version is None and not fields.keys() & {*_KNOWN, *_SCALARS}:
        return Doorman(extra=_extra(state))
    # A record of another version may mean anything, so nothing is granted on it
    # (test_a_record_we_do_not_understand_is_refused).
    if version != VERSION:
        raise BadRecord(
            what="the stored record is of an unknown version",
            hint=UPGRADE,
        )
    scalars = {
        name: _read(f"field {name} of the state", _number, fields.get(name, "0"))
        for name in _SCALARS
    }
    writer, upgrader = fields.get("writer"), fields.get("upgrader")
    fence = scalars["last"]
    grants: tuple[Grant, ...] = ()
    if writer is not None:
        grants = (_read("field writer of the state", _writer, writer, fence),)
    elif "seat" in fields:
        if fields["seat"].startswith(f"{PERMITS},"):
            what = "a permit in the state, or its score,"
            grants = tuple(
                _read(what, _permit, ticket, score, state)
                for ticket, score in readers.items()
                if state.get(_PERMIT + ticket)
            )
        else:
            what = "a reader in the state, or its score,"
            grants = tuple(
                _read(what, _reader, ticket, score, state, fence)
                for ticket, score in readers.items()
                if state.get(_READER + ticket)
            )
    # A name without its field is no entry: a step failed before it wrote the field.
    entries = [
        _read(f"field {_PLACE}{one_line(name, 40)}", _queue_entry, name, fields[place])
        for name in (member.decode(errors="replace") for member in queue)
        if (place := _PLACE + name) in fields
    ]
    notes = fields.get("endings", "")
    pushed = _read("field pushed of the state", _number, fields.get("pushed", "0"))
    _read("field plain of the state", _number, fields.get("plain", "0"))
    return Doorman(
        grants=grants,
        queue=tuple(sorted(entries, key=lambda entry: entry.number)),
        seat=fields.get("seat") if grants else None,
        upgrader=(
            None
            if upgrader is None
            else _read("field upgrader of the state", _pending_upgrade, upgrader)
        ),
        upgraded=fields.get("upgraded") == "1",
        pushed=writer is not None and pushed == fence,
        endings=_read("field endings of the state", endings_of, notes),
        extra=_extra(state),
        **scalars,
    )


def _writer(text: str, fence: int) -> Grant:
    ticket, since, expires, details = text.split(",", 3)
    ends = None if expires == "never" else _number(expires)
    return grant_of(ticket, Mode.WRITE, fence, _number(since), ends, details)


def _reader(ticket: str, score: str, state: dict[str, str], fence: int) -> Grant:
    since, details = state[_READER + ticket].split(",", 1)
    ends = None if score == "inf" else _number(score)
    return grant_of(ticket, Mode.READ, fence, _number(since), ends, details)


def _permit(ticket: str, score: str, state: dict[str, str]) -> Grant:
    fence, limit, since, details = state[_PERMIT + ticket].split(",", 3)
    ends = None if score == "inf" else _number(score)
    return grant_of(
        *(ticket, Mode.PERMIT, _number(fence), _number(since), ends, details),
        limit=_limit(limit),
    )


def _limit(text: str) -> int:
    limit = _number(text)
    if limit == 0:
        raise ValueError("a limit of 0")
    return limit


def _queue_entry(field: str, text: str) -> QueueEntry:
    number, since, expires, window, waiting, claim_until, who = text.split(",", 6)
    mode, limit = MODES[field[0]], 0
    if mode is Mode.PERMIT:
        least, who = who.split(",", 1)
        limit = _limit(least)
    ticket, lease = _claim(who) if mode is Mode.WRITE else ("", 0)
    return QueueEntry(
        number=_number(number),
        client_id=field[2:],
        mode=mode,
        since=_number(since),
        expires=_number(expires),
        claim_window=_number(window),
        waiting=_number(waiting),
        claim_until=_number(claim_until) if claim_until else None,
        who=who_of(who),
        ticket=ticket,
        lease=lease,
        limit=limit,
    )


def _claim(who: str) -> tuple[str, int]:
    found = _CLAIM.search(who)
    if found is None:
        return "", 0
    ticket, lease = found.groups()
    if int(lease) == 0:
        raise ValueError("a claim without a lease")
    return ticket, _number(lease)


def _pending_upgrade(text: str) -> PendingUpgrade:
    expires, called, gate, ticket = text.split(",", 3)
    return PendingUpgrade(ticket, gate, _number(expires), called == "1")


def _extra(state: dict[str, str]) -> Extra:
    ours = {*_KNOWN, *_SCALARS}
    return tuple(
        (name, text)
        for name, text in state.items()
        if name not in ours and not name.startswith((_READER, _PERMIT, _PLACE))
    )
