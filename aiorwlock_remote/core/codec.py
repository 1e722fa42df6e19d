"""The stored form of a doorman: a versioned dict of plain JSON values.

Fields of a newer minor version are kept as they are, so that two versions of this
library can share a store during a rolling deploy. Another major version, or anything
that is not what we write, is refused: a lock that guesses is no lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, get_args

from aiorwlock_remote.core.doorman import (
    Doorman,
    Extra,
    Grant,
    LossNote,
    PendingUpgrade,
    QueueEntry,
    Requester,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BadRecord, LossReason

VERSION = 1

T = TypeVar("T")

Fields = Mapping[str, Any]

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
_REASONS = get_args(LossReason)
_DOOR = {"v", "grants", "queue", "seat", "upgrader", "upgraded", "endings", *_SCALARS}


def dumps(door: Doorman) -> str:
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


def loads(text: str) -> Doorman:
    """The doorman of a JSON text.

    Raises:
        BadRecord: not JSON, not ours, or of an unknown version.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except KeyError as exc:
        raise BadRecord(
            what=f"the stored record is damaged ({exc.args[0]} is there twice)"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise BadRecord(what="the stored record is not JSON") from exc
    return load(data)


def load(data: object) -> Doorman:
    """The doorman of parsed JSON, of this version or a compatible one."""
    try:
        fields = cast("dict[str, Any]", data)
        if not isinstance(data, dict) or fields["v"] != VERSION:
            raise BadRecord(
                what="the stored record is of an unknown version",
                hint="upgrade aiorwlock-remote in every process that uses the store",
            )
        idle = fields.get("upgrader") is None
        return Doorman(
            grants=_grants(fields),
            queue=_places(fields),
            seat=_optional(fields, "seat", str),
            upgrader=None if idle else _load_slot(fields),
            upgraded=fields.get("upgraded", False) is True,
            endings=_endings(fields),
            extra=_extra(fields, _DOOR),
            **{name: _typed(fields, name, int) for name in _SCALARS},
        )
    except KeyError as exc:
        raise BadRecord(
            what=f"the stored record is damaged ({exc.args[0]} is missing)"
        ) from exc
    except (TypeError, ValueError) as exc:
        raise BadRecord(what=f"the stored record is damaged ({exc})") from exc


def _seldom(door: Doorman) -> Extra:
    """What most doormen have not."""
    seldom = door.extra
    if door.endings:
        endings = [[e.fence, e.holder, e.reason] for e in door.endings]
        seldom = ("endings", endings), *seldom
    if door.upgrader is not None:
        slot = door.upgrader
        kept = [slot.ticket, slot.client_id, slot.expires, slot.called]
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


def _place(place: QueueEntry) -> str:
    return (
        f'{{"number":{place.number},"gate":{_text(place.client_id)},'
        f'"mode":"{place.mode}","since":{place.since},"expires":{place.expires},'
        f'"window":{place.claim_window},"waiting":{place.waiting},'
        f'"claim_until":{_or_null(place.claim_until)},'
        f'"who":{_who(place.who)}{_rest(place.extra)}}}'
    )


def _who(who: Requester) -> str:
    host, task, reason = _text(who.host), _text(who.task), _text(who.reason)
    return f"[{host},{who.pid},{task},{reason}]"


def _rest(fields: Extra) -> str:
    """More fields of an object, behind others."""
    return f",{_object(dict(fields))[1:-1]}" if fields else ""


def _or_null(number: int | None) -> str:
    return "null" if number is None else str(number)


def _load_grant(data: object) -> Grant:
    fields = _object_of(data, "grants")
    return Grant(
        ticket=_typed(fields, "ticket", str),
        mode=_mode(fields),
        fence=_typed(fields, "fence", int),
        since=_typed(fields, "since", int),
        expires=_optional(fields, "expires", int),
        who=_load_who(fields),
        lock_delay=_typed(fields, "lock_delay", int) if "lock_delay" in fields else 0,
        extra=_extra(fields, _GRANT),
    )


def _load_place(data: object) -> QueueEntry:
    fields = _object_of(data, "queue")
    return QueueEntry(
        number=_typed(fields, "number", int),
        client_id=_typed(fields, "gate", str),
        mode=_mode(fields),
        since=_typed(fields, "since", int),
        expires=_typed(fields, "expires", int),
        claim_window=_typed(fields, "window", int),
        waiting=_typed(fields, "waiting", int),
        claim_until=_optional(fields, "claim_until", int),
        who=_load_who(fields),
        extra=_extra(fields, _PLACE),
    )


def _load_slot(fields: Fields) -> PendingUpgrade:
    slot = _named(fields, "upgrader", ("ticket", "gate", "expires", "called"))
    return PendingUpgrade(
        _typed(slot, "upgrader.ticket", str),
        _typed(slot, "upgrader.gate", str),
        _typed(slot, "upgrader.expires", int),
        bool(slot["upgrader.called"]),
    )


def _load_ending(data: object) -> LossNote:
    ending = _named({"endings": data}, "endings", ("fence", "holder", "reason"))
    reason = ending["endings.reason"]
    if reason not in _REASONS:
        reason = "forced"
    fence = _typed(ending, "endings.fence", int)
    return LossNote(fence, _typed(ending, "endings.holder", str), reason)


def _load_who(fields: Fields) -> Requester:
    who = _named(fields, "who", ("host", "pid", "task", "reason"))
    return Requester(
        _typed(who, "who.host", str),
        _typed(who, "who.pid", int),
        _typed(who, "who.task", str),
        _typed(who, "who.reason", str),
    )


def _extra(data: Fields, known: set[str]) -> Extra:
    return tuple((name, value) for name, value in data.items() if name not in known)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a name that is there twice is a ``KeyError``: which one counts?"""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return found


def _grants(fields: Fields) -> tuple[Grant, ...]:
    """Of different tickets; a writer is alone."""
    grants = tuple(map(_load_grant, _list(fields, "grants")))
    if len({grant.ticket for grant in grants}) != len(grants):
        raise ValueError("grants: one ticket is there twice")
    if len(grants) > 1 and any(grant.mode is Mode.WRITE for grant in grants):
        raise ValueError("grants: a writer is not alone")
    return grants


def _places(fields: Fields) -> tuple[QueueEntry, ...]:
    """One for each process and mode."""
    places = tuple(map(_load_place, _list(fields, "queue")))
    if len({(place.client_id, place.mode) for place in places}) != len(places):
        raise ValueError("queue: one place is there twice")
    return places


def _endings(fields: Fields) -> tuple[LossNote, ...]:
    """Which most records have not."""
    if "endings" not in fields:
        return ()
    return tuple(map(_load_ending, _list(fields, "endings")))


def _object_of(data: object, what: str) -> Fields:
    if not isinstance(data, dict):
        raise TypeError(f"one of {what}: {type(data).__name__} instead of an object")
    return cast("dict[str, Any]", data)


def _list(fields: Fields, name: str) -> list[Any]:
    found: list[Any] = fields[name]
    kind = type(found)
    if kind is not list:
        raise TypeError(f"{name}: {kind.__name__} instead of a list")
    return found


def _named(fields: Fields, name: str, parts: Sequence[str]) -> Fields:
    """A list whose first items have these names; a newer version may have more."""
    found = _list(fields, name)
    if len(found) < len(parts):
        raise ValueError(f"{name}: {len(found)} items")
    return {f"{name}.{part}": item for part, item in zip(parts, found, strict=False)}


def _mode(fields: Fields) -> Mode:
    try:
        return Mode(fields["mode"])
    except ValueError:
        raise ValueError("mode: neither read nor write") from None


def _typed(fields: Fields, name: str, kind: type[T]) -> T:
    value = fields[name]
    odd = isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63)
    if not isinstance(value, kind) or odd:
        raise TypeError(f"{name}: {type(value).__name__} instead of {kind.__name__}")
    return value


def _optional(fields: Fields, name: str, kind: type[T]) -> T | None:
    return None if fields[name] is None else _typed(fields, name, kind)
