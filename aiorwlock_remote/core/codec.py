"""The stored form of a doorman: a versioned dict of plain JSON values.

Fields that a newer minor version added are kept, so that two versions of this library
can share a store during a rolling deploy. Another major version and damaged records are
refused: guessing could let two holders in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast, get_args

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
UPGRADE = "upgrade aiorwlock-remote in every process that uses the store"
"""The hint of a record of another version, in every form that a store has."""

MAX_DEPTH = 50
"""Levels of lists and objects in a field that a newer version has added."""

Fields = dict[str, Any]
Kind = Callable[[Fields, str], object]

_object = json.JSONEncoder(separators=(",", ":")).encode
_text = json.encoder.encode_basestring_ascii

# These names are published (the Lua scripts read them), whatever the attributes are
# called in Python: a client id is stored as "gate".
_SCALARS = (
    *("last", "number", "admit_upto", "admit_until", "turns", "barred_until"),
    *("created", "updated"),
)
_GRANT = {
    *("ticket", "mode", "fence", "since", "expires", "who", "lock_delay", "limit"),
}
_ENTRY = {
    *("number", "gate", "mode", "since", "expires"),
    *("window", "waiting", "claim_until", "who", "ticket", "lease", "limit"),
}
_DOORMAN = {
    *("v", "grants", "queue", "seat", "upgrader", "upgraded", "pushed", "endings"),
    *_SCALARS,
}
_REASONS = get_args(LossReason)
_MODES = {mode.value: mode for mode in Mode}
_MAX_INT = 2**63 - 1


def dumps(doorman: Doorman) -> str:
    """Return a doorman as compact JSON text."""
    # Put together by hand because every step makes one: ``json`` takes four times as
    # long (test_the_text_is_what_an_encoder_would_write compares the two).
    grants = ",".join(map(_grant, doorman.grants))
    queue = ",".join(map(_entry, doorman.queue))
    seat = "null" if doorman.seat is None else _text(doorman.seat)
    fields = _seldom(doorman)
    seldom = _rest(fields) if fields else ""
    return (
        f'{{"v":{VERSION},"seat":{seat},"last":{doorman.last},"number":{doorman.number},'
        f'"admit_upto":{doorman.admit_upto},"admit_until":{doorman.admit_until},'
        f'"turns":{doorman.turns},"barred_until":{doorman.barred_until},'
        f'"created":{doorman.created},"updated":{doorman.updated},'
        f'"grants":[{grants}],"queue":[{queue}]{seldom}}}'
    )


def loads(text: str) -> Doorman:
    """Return the doorman in a JSON text, or raise ``BadRecord`` if it is damaged."""
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except KeyError as exc:
        raise BadRecord(
            what=f"the stored record is damaged ({exc.args[0]} stands in it twice)"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise BadRecord(what="the stored record is not JSON") from exc
    return load(data)


def load(data: object) -> Doorman:
    """Return the doorman in parsed JSON, or raise ``BadRecord`` if it is damaged."""
    try:
        fields = cast("dict[str, Any]", data)
        if not isinstance(data, dict) or fields["v"] != VERSION:
            raise BadRecord(
                what="the stored record is of an unknown version",
                hint=UPGRADE,
            )
        idle = fields.get("upgrader") is None
        grants = _grants(fields)
        return Doorman(
            grants=grants,
            queue=_entries(fields, grants),
            seat=_str_or_none(fields, "seat"),
            upgrader=None if idle else _load_upgrader(fields),
            upgraded=fields.get("upgraded", False) is True,
            pushed=_pushed(fields, grants),
            endings=_endings(fields),
            extra=_extra(fields, _DOORMAN),
            **{name: _int(fields, name) for name in _SCALARS},
        )
    except KeyError as exc:
        raise BadRecord(
            what=f"the stored record is damaged ({exc.args[0]} is missing)"
        ) from exc
    except (TypeError, ValueError) as exc:
        raise BadRecord(what=f"the stored record is damaged ({exc})") from exc


def _seldom(doorman: Doorman) -> Extra:
    seldom = doorman.extra
    if doorman.endings:
        endings = [[e.fence, e.holder, e.reason] for e in doorman.endings]
        seldom = ("endings", endings), *seldom
    if doorman.upgrader is not None:
        slot = doorman.upgrader
        kept = [slot.ticket, slot.client_id, slot.expires, slot.called]
        seldom = ("upgrader", kept), *seldom
    if doorman.pushed:
        seldom = ("pushed", True), *seldom
    if doorman.upgraded:
        seldom = ("upgraded", True), *seldom
    return seldom


def _grant(grant: Grant) -> str:
    extra = grant.extra
    if grant.limit:
        extra = ("limit", grant.limit), *extra
    if grant.lock_delay:
        extra = ("lock_delay", grant.lock_delay), *extra
    expires = "null" if grant.expires is None else grant.expires
    seldom = _rest(extra) if extra else ""
    return (
        f'{{"ticket":{_text(grant.ticket)},"mode":"{grant.mode}",'
        f'"fence":{grant.fence},"since":{grant.since},'
        f'"expires":{expires},"who":{_who(grant.who)}{seldom}}}'
    )


def _entry(entry: QueueEntry) -> str:
    extra = entry.extra
    if entry.limit:
        extra = ("limit", entry.limit), *extra
    ticket = entry.ticket
    claim = f',"ticket":{_text(ticket)},"lease":{entry.lease}' if ticket else ""
    until = "null" if entry.claim_until is None else entry.claim_until
    seldom = _rest(extra) if extra else ""
    return (
        f'{{"number":{entry.number},"gate":{_text(entry.client_id)},'
        f'"mode":"{entry.mode}","since":{entry.since},"expires":{entry.expires},'
        f'"window":{entry.claim_window},"waiting":{entry.waiting},'
        f'"claim_until":{until},"who":{_who(entry.who)}{claim}{seldom}}}'
    )


def _who(who: Requester) -> str:
    host, task, reason = _text(who.host), _text(who.task), _text(who.reason)
    return f"[{host},{who.pid},{task},{reason}]"


def _rest(fields: Extra) -> str:
    return f",{_object(dict(fields))[1:-1]}"


def _load_grant(data: object) -> Grant:
    fields = _object_of(data, "grants")
    mode = _mode(fields)
    return Grant(
        ticket=_str(fields, "ticket"),
        mode=mode,
        fence=_int(fields, "fence"),
        since=_int(fields, "since"),
        expires=_int_or_none(fields, "expires"),
        who=_load_who(fields),
        lock_delay=_int(fields, "lock_delay") if "lock_delay" in fields else 0,
        limit=_limit(fields, mode),
        extra=_extra(fields, _GRANT),
    )


def _load_entry(data: object) -> QueueEntry:
    fields = _object_of(data, "queue")
    mode = _mode(fields)
    ticket, lease = _claim(fields, mode)
    return QueueEntry(
        number=_int(fields, "number"),
        client_id=_str(fields, "gate"),
        mode=mode,
        since=_int(fields, "since"),
        expires=_int(fields, "expires"),
        claim_window=_int(fields, "window"),
        waiting=_int(fields, "waiting"),
        claim_until=_int_or_none(fields, "claim_until"),
        who=_load_who(fields),
        ticket=ticket,
        lease=lease,
        limit=_limit(fields, mode),
        extra=_extra(fields, _ENTRY),
    )


def _limit(fields: Fields, mode: Mode) -> int:
    limit = _int(fields, "limit") if "limit" in fields else 0
    # Without a limit a permit would keep everybody out, or let everybody in.
    if (limit > 0) is not (mode is Mode.PERMIT) or limit < 0:
        raise ValueError("limit: a permit has one from 1 up, a lock has none")
    return limit


def _claim(fields: Fields, mode: Mode) -> tuple[str, int]:
    ticket = _str(fields, "ticket") if "ticket" in fields else ""
    lease = _int(fields, "lease") if "lease" in fields else 0
    # A step would grant what stands there (test_a_claim_that_no_step_can_push).
    if ticket and lease <= 0:
        raise ValueError("queue: a ticket without a lease")
    if lease and not ticket:
        raise ValueError("queue: a lease without a ticket")
    if ticket and mode is not Mode.WRITE:
        whose = "reader" if mode is Mode.READ else "permit"
        raise ValueError(f"queue: a {whose}'s ticket")
    return ticket, lease


def _load_upgrader(fields: Fields) -> PendingUpgrade:
    kinds = {"ticket": _str, "gate": _str, "expires": _int, "called": _any}
    ticket, client_id, expires, called = _items(fields, "upgrader", kinds)
    return PendingUpgrade(ticket, client_id, expires, bool(called))


def _load_ending(data: object) -> LossNote:
    kinds = {"fence": _int, "holder": _str, "reason": _any}
    fence, holder, reason = _items({"endings": data}, "endings", kinds)
    # A reason of a newer version ends the grant all the same
    # (test_an_unknown_reason_is_read_as_forced).
    return LossNote(fence, holder, reason if reason in _REASONS else "forced")


def _load_who(fields: Fields) -> Requester:
    # Without a loop over the items: a record has one for each holder and waiter.
    match fields["who"]:
        case [str() as host, int() as pid, str() as task, str() as reason, *_] if (
            type(pid) is int and -_MAX_INT <= pid <= _MAX_INT
        ):
            return Requester(host, pid, task, reason)
        case _:
            pass
    kinds = {"host": _str, "pid": _int, "task": _str, "reason": _str}
    return Requester(*_items(fields, "who", kinds))


def _extra(data: Fields, known: set[str]) -> Extra:
    if data.keys() <= known:
        return ()
    extra = tuple((name, value) for name, value in data.items() if name not in known)
    _check_depth(extra)
    return extra


def _check_depth(fields: Extra) -> None:
    # What can be read may be nested too deep to be written again: a step would fail in
    # the middle (tests/fuzz/test_damage.py).
    level: list[Any] = [value for _, value in fields]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _inside(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, list) else ()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A name that stands twice is refused: readers in other languages may take the first
    # value where Python takes the last (test_a_name_that_is_there_twice).
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return found


def _grants(fields: Fields) -> tuple[Grant, ...]:
    grants = tuple(map(_load_grant, _list(fields, "grants")))
    if len({grant.ticket for grant in grants}) != len(grants):
        raise ValueError("grants: two grants have one ticket")
    if len(grants) > 1 and any(grant.mode is Mode.WRITE for grant in grants):
        raise ValueError("grants: a writer beside other holders")
    return grants


def _pushed(fields: Fields, grants: tuple[Grant, ...]) -> bool:
    pushed: object = fields.get("pushed", False)
    if not isinstance(pushed, bool):
        raise TypeError(f"pushed: {type(pushed).__name__} instead of bool")
    if pushed and (not grants or grants[0].mode is not Mode.WRITE):
        raise ValueError("pushed: there is no writer")
    return pushed


def _entries(fields: Fields, grants: tuple[Grant, ...]) -> tuple[QueueEntry, ...]:
    entries = tuple(map(_load_entry, _list(fields, "queue")))
    if len({(entry.client_id, entry.mode) for entry in entries}) != len(entries):
        raise ValueError("queue: one client has two entries for one mode")
    modes = [grant.mode for grant in grants] + [entry.mode for entry in entries]
    if len({mode is Mode.PERMIT for mode in modes}) > 1:
        raise ValueError("grants, queue: a semaphore's beside a lock's")
    return entries


def _endings(fields: Fields) -> tuple[LossNote, ...]:
    listed = _list(fields, "endings") if "endings" in fields else ()
    return tuple(map(_load_ending, listed))


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


def _items(fields: Fields, name: str, kinds: Mapping[str, Kind]) -> list[Any]:
    # A newer version may have added items behind these.
    found = _list(fields, name)
    if len(found) < len(kinds):
        raise ValueError(f"{name}: {len(found)} items")
    return [
        kind({f"{name}.{part}": item}, f"{name}.{part}")
        for (part, kind), item in zip(kinds.items(), found, strict=False)
    ]


def _mode(fields: Fields) -> Mode:
    mode = _MODES.get(_str(fields, "mode"))
    if mode is None:
        raise ValueError("mode: neither read nor write nor permit")
    return mode


# JSON has these very types, and no subclasses of theirs but bool, which is no number.


def _int(fields: Fields, name: str) -> int:
    value = fields[name]
    if type(value) is int and -_MAX_INT <= value <= _MAX_INT:
        return value
    raise TypeError(f"{name}: {type(value).__name__} instead of int")


def _int_or_none(fields: Fields, name: str) -> int | None:
    return None if fields[name] is None else _int(fields, name)


def _str(fields: Fields, name: str) -> str:
    value = fields[name]
    if type(value) is str:
        return value
    raise TypeError(f"{name}: {type(value).__name__} instead of str")


def _str_or_none(fields: Fields, name: str) -> str | None:
    return None if fields[name] is None else _str(fields, name)


def _any(fields: Fields, name: str) -> object:
    return fields[name]
