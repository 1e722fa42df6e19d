"""The stored form of a doorman: a versioned dict of plain JSON values.

Fields of a newer minor version are kept as they are, so that two versions of this
library can share a store during a rolling deploy. Another major version, or anything
that is not what we write, is refused: a lock that guesses is no lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

from aiorwlock_remote.core.record import (
    Ending,
    Extra,
    Grant,
    Place,
    Record,
    Upgrader,
    Who,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BadRecord, LossReason

VERSION = 1

T = TypeVar("T")

_object = json.JSONEncoder(separators=(",", ":")).encode
_text = json.encoder.encode_basestring_ascii

_SCALARS = (
    *("last", "number", "admit_upto", "admit_until", "turns", "barred_until"),
    *("created", "updated"),
)
_GRANT = {"ticket", "mode", "fence", "since", "expires", "who", "lock_delay"}
_PLACE = {"number", "gate", "mode", "since", "expires", "window", "waiting"} | {
    "claim_until",
    "who",
}
_DOOR = {"v", "grants", "queue", "seat", "upgrader", "upgraded", "endings", *_SCALARS}


def dumps(door: Record) -> str:
    """A doorman as compact JSON text.

    Written out, because every step makes one: an encoder takes four times as long.
    """
    grants = ",".join(map(_grant, door.grants))
    queue = ",".join(map(_place, door.queue))
    seat = "null" if door.seat is None else _text(door.seat)
    return (
        f'{{"v":{VERSION},"seat":{seat},"last":{door.last},"number":{door.number},'
        f'"admit_upto":{door.admit_upto},"admit_until":{door.admit_until},'
        f'"turns":{door.turns},"barred_until":{door.barred_until},'
        f'"created":{door.created},"updated":{door.updated},'
        f'"grants":[{grants}],"queue":[{queue}]{_rest(_seldom(door))}}}'
    )


def loads(text: str) -> Record:
    """The doorman of a JSON text.

    Raises:
        BadRecord: not JSON, not ours, or of an unknown version.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadRecord(what="the stored record is not JSON") from exc
    return load(data)


def load(data: object) -> Record:
    """The doorman of parsed JSON, of this version or a compatible one."""
    try:
        fields = cast("dict[str, Any]", data)
        if not isinstance(data, dict) or fields["v"] != VERSION:
            raise BadRecord(
                what="the stored record is of an unknown version",
                hint="upgrade aiorwlock-remote in every process that uses the store",
            )
        slot = fields.get("upgrader")
        return Record(
            grants=tuple(_load_grant(g) for g in fields["grants"]),
            queue=tuple(_load_place(p) for p in fields["queue"]),
            seat=_optional(fields["seat"], str),
            upgrader=None if slot is None else _load_slot(slot),
            upgraded=fields.get("upgraded", False) is True,
            endings=tuple(_load_ending(e) for e in fields.get("endings", ())),
            extra=_extra(fields, _DOOR),
            **{name: _typed(fields[name], int) for name in _SCALARS},
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise BadRecord(what=f"the stored record is damaged ({exc!r})") from exc


def _seldom(door: Record) -> Extra:
    """What most doormen have not."""
    seldom = door.extra
    if door.endings:
        endings = [[e.fence, e.holder, e.reason] for e in door.endings]
        seldom = ("endings", endings), *seldom
    if door.upgrader is not None:
        slot = door.upgrader
        kept = [slot.ticket, slot.gate, slot.expires, slot.called]
        seldom = ("upgrader", kept), *seldom
    if door.upgraded:
        seldom = ("upgraded", True), *seldom
    return seldom


def _grant(grant: Grant) -> str:
    extra = grant.extra
    if grant.lock_delay:
        extra = ("lock_delay", grant.lock_delay), *extra
    return (
        f'{{"ticket":{_text(grant.ticket)},"mode":"{grant.mode}",'
        f'"fence":{grant.fence},"since":{grant.since},'
        f'"expires":{_or_null(grant.expires)},"who":{_who(grant.who)}{_rest(extra)}}}'
    )


def _place(place: Place) -> str:
    return (
        f'{{"number":{place.number},"gate":{_text(place.gate)},'
        f'"mode":"{place.mode}","since":{place.since},"expires":{place.expires},'
        f'"window":{place.window},"waiting":{place.waiting},'
        f'"claim_until":{_or_null(place.claim_until)},'
        f'"who":{_who(place.who)}{_rest(place.extra)}}}'
    )


def _who(who: Who) -> str:
    host, task, reason = _text(who.host), _text(who.task), _text(who.reason)
    return f"[{host},{who.pid},{task},{reason}]"


def _rest(fields: Extra) -> str:
    """More fields of an object, behind others."""
    return f",{_object(dict(fields))[1:-1]}" if fields else ""


def _or_null(number: int | None) -> str:
    return "null" if number is None else str(number)


def _load_grant(data: Mapping[str, Any]) -> Grant:
    return Grant(
        ticket=_typed(data["ticket"], str),
        mode=Mode(data["mode"]),
        fence=_typed(data["fence"], int),
        since=_typed(data["since"], int),
        expires=_optional(data["expires"], int),
        who=_load_who(data["who"]),
        lock_delay=_typed(data.get("lock_delay", 0), int),
        extra=_extra(data, _GRANT),
    )


def _load_place(data: Mapping[str, Any]) -> Place:
    return Place(
        number=_typed(data["number"], int),
        gate=_typed(data["gate"], str),
        mode=Mode(data["mode"]),
        since=_typed(data["since"], int),
        expires=_typed(data["expires"], int),
        window=_typed(data["window"], int),
        waiting=_typed(data["waiting"], int),
        claim_until=_optional(data["claim_until"], int),
        who=_load_who(data["who"]),
        extra=_extra(data, _PLACE),
    )


def _load_slot(data: list[Any]) -> Upgrader:
    ticket, gate, expires, called = data[:4]
    return Upgrader(
        _typed(ticket, str), _typed(gate, str), _typed(expires, int), bool(called)
    )


def _load_ending(data: list[Any]) -> Ending:
    fence, holder, reason = data[:3]
    if reason not in get_args(LossReason):
        reason = "forced"
    return Ending(_typed(fence, int), _typed(holder, str), reason)


def _load_who(data: list[Any]) -> Who:
    host, pid, task, reason = data[:4]
    return Who(
        _typed(host, str), _typed(pid, int), _typed(task, str), _typed(reason, str)
    )


def _extra(data: Mapping[str, Any], known: set[str]) -> Extra:
    return tuple((name, value) for name, value in data.items() if name not in known)


def _typed(value: object, kind: type[T]) -> T:
    odd = isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63)
    if not isinstance(value, kind) or odd:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _optional(value: object, kind: type[T]) -> T | None:
    return None if value is None else _typed(value, kind)
