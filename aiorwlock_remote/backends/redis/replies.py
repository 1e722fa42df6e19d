"""What a script answers, as the core's replies; the forms are in ``lua/main.lua``.

Every answer is read by its shape: how many items, and of which types. What has another
shape says nothing about what was done, and is never taken for a grant: the first byte
of ``b"foo"`` is a number above zero, as a fence is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import Raw
from aiorwlock_remote.core.commands import (
    AHEAD,
    BARRED,
    FULL,
    HELD,
    OTHER_MODE,
    Acquire,
    Adopt,
    Answer,
    Claim,
    Command,
    Conflict,
    Downgrade,
    Forced,
    ForceRelease,
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
from aiorwlock_remote.core.doorman import Doorman, Grant, LossNote, Requester
from aiorwlock_remote.core.mutex_record import why_gone
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.errors import BackendError, LossReason

NOTIFIED = -9
LIVE, WAITING, REFUSED, NOT_HELD, CONFLICT, RELEASED = 0, -1, -2, -3, -4, -5

PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError)
"""What comes of reading an answer that makes no sense."""

_YES_NO = (0, 1)
_REFUSALS = {HELD, AHEAD, OTHER_MODE, FULL, BARRED}
_MODES = {"r": Mode.READ, "w": Mode.WRITE}


def decode(command: Command, raw: Raw) -> Reply:
    """The reply to a command.

    Raises:
        BackendError: the answer cannot be read; nobody knows what was done.
    """
    return decode_step(command, raw)[0]


def decode_step(
    command: Command,
    raw: Raw,
) -> tuple[Reply, bool]:
    """The reply, and whether the gate given to ``encode`` is to be rung.

    Raises:
        BackendError: as ``decode``.
    """
    decoder = _DECODERS[type(command)]
    try:
        if _is_a(list, raw) and len(raw) == 2 and raw[0] == NOTIFIED:
            return decoder(command, raw[1]), True
        return decoder(command, raw), False
    except PARSE_ERRORS as exc:
        raise unreadable_answer(exc) from exc


@contextmanager
def reading_answer() -> Generator[None, None, None]:
    """``with`` it an answer is read, or the function that reads it is decorated.

    Raises:
        BackendError: it makes no sense.
    """
    try:
        yield
    except PARSE_ERRORS as exc:
        raise unreadable_answer(exc) from exc


def unreadable_answer(error: Exception) -> BackendError:
    """What to say of an answer that cannot be read."""
    return BackendError(
        what=f"the server's answer to a script cannot be read ({error!r})",
        hint="is it Redis or Valkey, with nothing between that changes answers?",
    )


def items_of(raw: Raw, count: int | None = None) -> list[Raw]:
    """A list, of so many items."""
    items: list[Raw] = raw
    kind = type(items)
    if kind is not list or (count is not None and len(items) != count):
        raise TypeError(f"{kind.__name__} instead of a list")
    return items


def _is_a(kind: type[object], raw: Raw) -> bool:
    return type(raw) is kind


def number_of(raw: Raw) -> int:
    """A whole number, and nothing that is only equal to one."""
    if type(raw) is not int:
        raise TypeError(f"{type(raw).__name__} instead of a number")
    return raw


def bytes_of(raw: Raw) -> bytes:
    """A text as it was sent."""
    if type(raw) is not bytes:
        raise TypeError(f"{type(raw).__name__} instead of a text")
    return raw


def who_of(text: str) -> Requester:
    """Who asked; there may be more of it in a newer version."""
    host, pid, task, reason = items_of(json.loads(text))[:4]
    if not (type(host) is type(task) is type(reason) is str):
        raise TypeError("who asked is no text")
    return Requester(host, number_of(pid), task, reason)


def endings_of(text: str) -> tuple[LossNote, ...]:
    """Why grants ended early."""
    return tuple(_ending(part) for part in text.split(";") if part)


def grant_of(
    ticket: str, mode: Mode, fence: int, since: int, expires: int | None, details: str
) -> Grant:
    """A grant as it is stored; ``details``: holder, lock_delay, who."""
    _, delay, who = details.split(",", 2)
    return Grant(ticket, mode, fence, since, expires, who_of(who), int(delay))


def _ending(text: str) -> LossNote:
    fence, holder, reason = text.split(",")
    known: dict[str, LossReason] = {"stolen": "stolen"}
    return LossNote(int(fence), holder, known.get(reason, "forced"))


def _acquired(command: Acquire, raw: Raw) -> Answer:
    if number_of(items_of(raw)[0]) > 0:
        return _granted(command.claims, command.mode, raw, placed=command.more > 0)
    if raw[0] == WAITING:
        return _waiting(raw)
    if raw[0] == REFUSED:
        return _refused(raw)
    return _live(command.claims, command.mode, raw)


def _granted(
    claims: Iterable[Claim], mode: Mode, raw: Raw, *, placed: bool = False
) -> Granted:
    fence, now = map(number_of, items_of(raw))
    grants: list[Grant] = []
    for claim in claims:
        lease = claim.lease
        ends = None if lease is None else now + lease
        ticket, who, delay = claim.ticket, claim.who, claim.lock_delay
        grants.append(Grant(ticket, mode, fence, now, ends, who, delay))
    return Granted(tuple(grants), now, placed)


def _live(claims: Iterable[Claim], mode: Mode, raw: Raw) -> Granted:
    kind, now, placed, fence, *items = raw
    asked = {claim.ticket for claim in claims}
    grants = tuple(
        _told(bytes_of(ticket).decode(), mode, number_of(fence), rest)
        for ticket, *rest in map(items_of, items)
    )
    if kind != LIVE or not grants or not asked.issuperset(g.ticket for g in grants):
        raise ValueError("grants that nobody asked for")
    return Granted(grants, number_of(now), bool(number_of(placed)))


def _told(ticket: str, mode: Mode, fence: int, rest: Raw) -> Grant:
    since, ends, details = items_of(rest, 3)
    text = bytes_of(details).decode()
    return grant_of(ticket, mode, fence, number_of(since), _time(ends), text)


def _waiting(raw: Raw) -> Waiting:
    return Waiting(number_of(raw[1]), _time(raw[2]), tuple(map(_shown, raw[3:])))


def _refused(raw: Raw) -> Refused:
    why = bytes_of(raw[1]).decode()
    if why not in _REFUSALS:
        raise ValueError(f"refused, and why is {why!r}")
    return Refused(why, _time(raw[2]), tuple(map(_shown, raw[3:])))


def _shown(raw: Raw) -> str:
    text = bytes_of(raw).decode("utf-8", "surrogateescape")
    if text[0] == "f":
        return f"foreign {holder_of(text[1:])}"
    holder, _, who = text[1:].split(",", 2)
    return f"{_MODES[text[0]]} {holder} {who_of(who)}"


def _time(value: Raw) -> int | None:
    return None if number_of(value) < 0 else value


def _why(last: Raw, endings: Raw, ticket: str) -> LossReason:
    noted = endings_of(bytes_of(endings).decode())
    return why_gone(Doorman(last=number_of(last), endings=noted), holder_of(ticket))


def _released(command: Release, raw: Raw) -> Released:
    if _is_a(int, raw) and raw == 1 and not command.then:
        return Released(held=True)
    items = items_of(raw)
    if number_of(items[0]) > 1:
        (ask,) = command.then
        return Released(held=True, then=(_acquired(ask, raw),))
    kind, held, last, endings, *answers = items
    if kind != RELEASED or held not in _YES_NO:
        raise ValueError("no answer to a release")
    both = zip(command.then, answers, strict=True)
    then = tuple(_acquired(ask, answer) for ask, answer in both)
    if number_of(held) == 1:
        return Released(held=True, then=then)
    reason = _why(last, endings, command.ticket)
    return Released(held=False, reason=reason, then=then)


def _withdrawn(command: Withdraw, raw: Raw) -> Withdrawn:
    held = tuple(bytes_of(ticket).decode() for ticket in items_of(raw))
    if not set(held) <= set(command.tickets):
        raise ValueError("tickets that nobody withdrew")
    return Withdrawn(held)


def _renewed(command: Renew, raw: Raw) -> Renewed:
    last, endings, *items = items_of(raw)
    outcomes: list[Grant | NotHeld] = []
    for (ticket, _), item in zip(command.tickets, items, strict=True):
        if type(item) is int and item == 0:
            outcomes.append(NotHeld(_why(last, endings, ticket)))
            continue
        mode, *rest = items_of(item)
        kind = _MODES[bytes_of(mode).decode()]
        outcomes.append(_told(ticket, kind, number_of(last), rest))
    return Renewed(tuple(outcomes))


def _moved(
    command: Downgrade | Upgrade,
    raw: Raw,
) -> Granted | NotHeld | Conflict | Waiting | Refused:
    mode = Mode.READ if isinstance(command, Downgrade) else Mode.WRITE
    kind = number_of(items_of(raw)[0])
    if kind > 0:
        return _granted((command.claim,), mode, raw)
    if kind == NOT_HELD:
        return _not_held(command.ticket, raw)
    if kind == CONFLICT:
        items_of(raw, 1)
        return Conflict()
    if kind == WAITING:
        return _waiting(raw)
    if kind == REFUSED:
        return _refused(raw)
    return _live((command.claim,), mode, raw)


def _not_held(ticket: str, raw: Raw) -> NotHeld:
    _, last, endings = raw
    return NotHeld(_why(last, endings, ticket))


def _adopted(command: Adopt, raw: Raw) -> Granted | NotHeld:
    if number_of(items_of(raw)[0]) == NOT_HELD:
        return _not_held(command.ticket, raw)
    now, fence, mode, *rest = raw
    kind = _MODES[bytes_of(mode).decode()]
    grant = _told(command.claim.ticket, kind, number_of(fence), rest)
    return Granted((grant,), now)


def _forced(_command: ForceRelease, raw: Raw) -> Forced:
    return Forced(yes_no(raw))


def yes_no(raw: Raw) -> bool:
    """1 or 0."""
    if number_of(raw) not in _YES_NO:
        raise ValueError(f"{raw} instead of 1 or 0")
    return bool(raw)


_DECODERS: dict[type[Any], Callable[[Any, Any], Reply]] = {
    Acquire: _acquired,
    Release: _released,
    Withdraw: _withdrawn,
    Renew: _renewed,
    Downgrade: _moved,
    Upgrade: _moved,
    Adopt: _adopted,
    ForceRelease: _forced,
}
