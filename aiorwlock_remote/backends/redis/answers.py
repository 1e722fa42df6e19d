"""What a script answers, as the core's replies; the forms are in ``lua/main.lua``."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import Raw
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Answer,
    Claim,
    Command,
    Conflict,
    Downgrade,
    Force,
    Forced,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Waiting,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.record import Ending, Grant, Record, Who
from aiorwlock_remote.core.seat import why_gone
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import BadRecord, LossReason

RUNG = -9
LIVE, WAITING, REFUSED, NOT_HELD, CONFLICT = 0, -1, -2, -3, -4

NONSENSE = (ValueError, LookupError, TypeError, AttributeError)
"""What comes of reading an answer that makes no sense."""

_MODES = {"r": Mode.READ, "w": Mode.WRITE}


def decode(command: Command, raw: Raw) -> Reply:
    """The reply to a command.

    Raises:
        BadRecord: what is stored there is not ours, or damaged.
    """
    return decode_step(command, raw)[0]


def decode_step(
    command: Command,
    raw: Raw,
) -> tuple[Reply, bool]:
    """The reply, and whether the gate given to ``encode`` is to be rung.

    Raises:
        BadRecord: what is stored there is not ours, or damaged.
    """
    decoder = _DECODERS[type(command)]
    try:
        if type(raw) is list and raw and raw[0] == RUNG:
            return decoder(command, raw[1]), True
        return decoder(command, raw), False
    except NONSENSE as exc:
        raise damaged(exc) from exc


@contextmanager
def legible() -> Generator[None, None, None]:
    """``with`` it an answer is read, or the function that reads it is decorated.

    Raises:
        BadRecord: it makes no sense.
    """
    try:
        yield
    except NONSENSE as exc:
        raise damaged(exc) from exc


def damaged(error: Exception) -> BadRecord:
    """What to say of an answer that cannot be read."""
    return BadRecord(what=f"the stored record is damaged ({error!r})")


def who_of(text: str) -> Who:
    """Who asked; there may be more of it in a newer version."""
    host, pid, task, reason = json.loads(text)[:4]
    return Who(host, pid, task, reason)


def endings_of(text: str) -> tuple[Ending, ...]:
    """Why grants ended early."""
    return tuple(_ending(part) for part in text.split(";") if part)


def grant_of(
    ticket: str, mode: Mode, fence: int, since: int, expires: int | None, details: str
) -> Grant:
    """A grant as it is stored; ``details``: holder, lock_delay, who."""
    _, delay, who = details.split(",", 2)
    return Grant(ticket, mode, fence, since, expires, who_of(who), int(delay))


def _ending(text: str) -> Ending:
    fence, holder, reason = text.split(",")
    known: dict[str, LossReason] = {"stolen": "stolen"}
    return Ending(int(fence), holder, known.get(reason, "forced"))


def _acquired(command: Acquire, raw: Raw) -> Answer:
    kind = raw[0]
    if kind > 0:
        placed = command.more > 0
        return _granted(command.claims, command.mode, kind, raw[1], placed=placed)
    if kind == WAITING:
        return _waiting(raw)
    return _refused(raw) if kind == REFUSED else _live(command.mode, raw)


def _granted(
    claims: Iterable[Claim], mode: Mode, fence: int, now: int, *, placed: bool = False
) -> Granted:
    grants: list[Grant] = []
    for claim in claims:
        lease = claim.lease
        ends = None if lease is None else now + lease
        ticket, who, delay = claim.ticket, claim.who, claim.lock_delay
        grants.append(Grant(ticket, mode, fence, now, ends, who, delay))
    return Granted(tuple(grants), now, placed)


def _live(mode: Mode, raw: Raw) -> Granted:
    _, now, placed, fence, *items = raw
    grants = (
        grant_of(ticket.decode(), mode, fence, since, _time(ends), details.decode())
        for ticket, since, ends, details in items
    )
    return Granted(tuple(grants), now, bool(placed))


def _waiting(raw: Raw) -> Waiting:
    return Waiting(raw[1], _time(raw[2]), tuple(map(_shown, raw[3:])))


def _refused(raw: Raw) -> Refused:
    return Refused(raw[1].decode(), _time(raw[2]), tuple(map(_shown, raw[3:])))


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    if text[0] == "f":
        return f"foreign {holder_of(text[1:])}"
    holder, _, who = text[1:].split(",", 2)
    return f"{_MODES[text[0]]} {holder} {who_of(who)}"


def _time(value: int) -> int | None:
    return None if value < 0 else value


def _why(last: int, endings: bytes, ticket: str) -> LossReason:
    noted = endings_of(endings.decode())
    return why_gone(Record(last=last, endings=noted), holder_of(ticket))


def _released(command: Release, raw: Raw) -> Released:
    if raw == 1:
        return Released(held=True)
    if raw[0] > 1:
        (ask,) = command.then
        return Released(held=True, then=(_acquired(ask, raw),))
    _, held, last, endings, *answers = raw
    then = tuple(map(_acquired, command.then, answers))
    if held == 1:
        return Released(held=True, then=then)
    reason = _why(last, endings, command.ticket)
    return Released(held=False, reason=reason, then=then)


def _withdrawn(_command: Withdraw, raw: Raw) -> Withdrawn:
    return Withdrawn(tuple(ticket.decode() for ticket in raw))


def _renewed(command: Renew, raw: Raw) -> Renewed:
    last, endings, *items = raw
    outcomes: list[Grant | NotHeld] = []
    for (ticket, _), item in zip(command.tickets, items, strict=True):
        if item == 0:
            outcomes.append(NotHeld(_why(last, endings, ticket)))
            continue
        mode, since, ends, details = item
        kind, text = _MODES[mode.decode()], details.decode()
        outcomes.append(grant_of(ticket, kind, last, since, _time(ends), text))
    return Renewed(tuple(outcomes))


def _moved(
    command: Downgrade | Upgrade,
    raw: Raw,
) -> Granted | NotHeld | Conflict | Waiting | Refused:
    mode = Mode.READ if isinstance(command, Downgrade) else Mode.WRITE
    kind = raw[0]
    if kind > 0:
        return _granted((command.claim,), mode, kind, raw[1])
    if kind == NOT_HELD:
        return NotHeld(_why(raw[1], raw[2], command.ticket))
    if kind == CONFLICT:
        return Conflict()
    if kind == LIVE:
        return _live(mode, raw)
    return _waiting(raw) if kind == WAITING else _refused(raw)


def _adopted(command: Adopt, raw: Raw) -> Granted | NotHeld:
    if raw[0] == NOT_HELD:
        return NotHeld(_why(raw[1], raw[2], command.ticket))
    now, fence, mode, since, ends, details = raw
    kind, text = _MODES[mode.decode()], details.decode()
    ticket = command.claim.ticket
    grant = grant_of(ticket, kind, fence, since, _time(ends), text)
    return Granted((grant,), now)


def _forced(_command: Force, raw: Raw) -> Forced:
    return Forced(raw == 1)


_DECODERS: dict[type[Any], Callable[[Any, Any], Reply]] = {
    Acquire: _acquired,
    Release: _released,
    Withdraw: _withdrawn,
    Renew: _renewed,
    Downgrade: _moved,
    Upgrade: _moved,
    Adopt: _adopted,
    Force: _forced,
}
