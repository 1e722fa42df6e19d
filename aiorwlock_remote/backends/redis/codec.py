"""Encodes commands as arguments of a Lua script, and decodes its answers as replies.

``lua/main.lua`` documents arguments and answers, ``lua/permits_main.lua`` those of a
semaphore that differ. Each answer is recognised by its
shape: the number of its items and their types. An answer of any other shape does not
show what was carried out and is never taken for a grant: the first byte of ``b"foo"``
is a number above zero, as a fence is (test_replies.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from aiorwlock_remote.backends.redis.connection.protocol import Arg, Raw, Request
from aiorwlock_remote.backends.redis.keys import Keys
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
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode, holder_of, new_holder_of
from aiorwlock_remote.errors import BackendError, LossReason

# First items of answers. A fence is above zero, so that none of these can be taken for
# a grant.
_NOTIFIED = -9
_LIVE, _WAITING, _REFUSED, _NOT_HELD, _CONFLICT, _RELEASED = 0, -1, -2, -3, -4, -5

WAS_HELD = Released(held=True)
"""The reply to a release that carried nothing along, and found its grant."""

PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions that are raised by reading an answer of an unexpected shape."""

WRITE, PERMIT = Mode.WRITE, Mode.PERMIT
MODES = {"r": Mode.READ, "w": WRITE, "p": PERMIT}
_MODE_LETTERS = {Mode.READ: "r", WRITE: "w", PERMIT: "p", None: ""}
_YES_NO = (0, 1)
# What an acquire allows, as a sum; main.lua lists them.
_MAY_QUEUE, _PUSH, _CONFIRMS, _FOLLOWING = 1, 2, 4, 8
# What the text of a holder begins with if it is another program (record.describe).
_FOREIGN = b"f"
# A queue entry is stored with its ticket between quotes. Tickets of this library are
# hex digits; one that a user chose may be anything. Without it in the queue entry the
# client is woken as usual.
_unquoted = re.compile(r'["\\]').search
_PUSHED = re.compile(rb"([0-9]{1,17}),([0-9]{1,17}),([0-9]{1,17}),([0-9a-f]{40})")
_REFUSALS = {HELD, AHEAD, OTHER_MODE, FULL, BARRED}


def encode(keys: Keys, command: Command, client_id: str = "") -> Request:
    """Return the script that carries out ``command``, and its arguments.

    Args:
        keys: The keys of the resource.
        command: The command to encode.
        client_id: Id of the sending client. If its own waiters are next, the reply says
            so; other clients get a message. With "", this client gets messages, too.
    """
    return _ENCODERS[type(command)](keys, command, client_id)


def _encode_acquire(keys: Keys, command: Acquire, client_id: str) -> Request:
    claims, kind = command.claims, "a"
    # The short cuts of fast.lua are for one claim with a lease, while no other task of
    # this client waits. test_differential.py runs them against the long way.
    if len(claims) == 1 and claims[0].lease and not claims[0].lock_delay:
        if command.confirms:
            kind = "c"
        elif not command.more:
            kind = "w" if command.mode is WRITE else "e"
    following = [] if command.following is None else _encode_following(command)
    ask = _encode_ask(command, client_id, following=bool(following))
    args = (*keys.args, kind, client_id, ask, *_encode_claims(claims), *following)
    return keys.enter, args


def _encode_release(keys: Keys, command: Release, client_id: str) -> Request:
    then = command.then
    kind = "h" if len(then) == 1 and _is_own_writer(then[0], client_id) else "r"
    args = (*keys.args, kind, client_id, _MODE_LETTERS[command.mode], command.ticket)
    for ask in then:
        claims = _encode_claims(ask.claims) + _encode_following(ask)
        text = _encode_ask(ask, client_id, following=len(claims) > 3 * len(ask.claims))
        args += (len(claims) // 3, text, *claims)
    return keys.leave, args


def _is_own_writer(ask: Acquire, client_id: str) -> bool:
    claim = ask.claims[0]
    own = ask.mode is WRITE and ask.client_id == client_id
    return own and claim.lease is not None and not claim.lock_delay


def _encode_withdraw(keys: Keys, command: Withdraw, client_id: str) -> Request:
    args = (*keys.args, "t", client_id, _MODE_LETTERS[command.mode], int(command.keep))
    return keys.leave, (*args, command.upgrader, command.client_id, *command.tickets)


def _encode_renew(keys: Keys, command: Renew, client_id: str) -> Request:
    # A ticket that is named twice has the lease it was named with last, as in the core.
    leases = dict(command.tickets)
    args: list[Arg] = [*keys.args, "n", client_id]
    for ticket, _ in command.tickets:
        lease = leases[ticket]
        if lease is not None and command.exact:
            lease = -lease
        args += (ticket, "" if lease is None else lease)
    return keys.leave, tuple(args)


def _encode_move(keys: Keys, command: Downgrade | Adopt, client_id: str) -> Request:
    kind = "d" if isinstance(command, Downgrade) else "o"
    claim = _encode_claims((command.claim,))
    return keys.leave, (*keys.args, kind, client_id, command.ticket, *claim)


def _encode_upgrade(keys: Keys, command: Upgrade, client_id: str) -> Request:
    life = command.entry_ttl if command.may_wait else 0
    claim = _encode_claims((command.claim,))
    return keys.enter, (
        *(*keys.args, "u", client_id, command.ticket, *claim),
        *(life, command.client_id),
    )


def _encode_force(keys: Keys, command: ForceRelease, client_id: str) -> Request:
    if command.seat is not None:
        seat = command.seat.encode("utf-8", "surrogateescape")
        return keys.leave, (*keys.args, "s", client_id, seat)
    return keys.leave, (*keys.args, "f", client_id, command.holder, command.fence)


_ENCODERS: dict[type[Any], Callable[[Keys, Any, str], Request]] = {
    Acquire: _encode_acquire,
    Release: _encode_release,
    Withdraw: _encode_withdraw,
    Renew: _encode_renew,
    Downgrade: _encode_move,
    Upgrade: _encode_upgrade,
    Adopt: _encode_move,
    ForceRelease: _encode_force,
}


def _encode_claims(claims: tuple[Claim, ...]) -> list[Arg]:
    args: list[Arg] = []
    for claim in claims:
        ticket, lease, who = claim.ticket, claim.lease, claim.who
        shown = encode_who(who.host, who.pid, who.task, who.reason)
        details = f"{new_holder_of(ticket)},{claim.lock_delay},{shown}"
        args += (ticket, "" if lease is None else lease, details)
    return args


@lru_cache(maxsize=1024)
def encode_who(host: str, pid: int, task: str, reason: str) -> str:
    """Return the text in which a record has a requester."""
    return json.dumps([host, pid, task, reason], separators=(",", ":"))


def _encode_following(command: Acquire) -> list[Arg]:
    claim = command.following
    if claim is None or not command.more or _unquoted(claim.ticket):
        return []
    return _encode_claims((claim,))


def _encode_ask(command: Acquire, client_id: str, *, following: bool) -> str:
    limit = command.max_waiters
    allows = _MAY_QUEUE if command.may_queue else 0
    if command.push and not _unquoted(command.claims[0].ticket):
        allows += _PUSH
    if command.confirms:
        allows += _CONFIRMS
    if following:
        allows += _FOLLOWING
    # A semaphore has no policies.
    rule = command.limit or command.policy
    return _joined(
        *(_MODE_LETTERS[command.mode], rule, allows),
        *(command.more, command.waiting, "" if limit is None else limit),
        *(command.entry_ttl, command.claim_window),
        "=" if command.client_id == client_id else command.client_id,
    )


@lru_cache(maxsize=4096)
def _joined(*parts: str | int) -> str:
    return ",".join(map(str, parts))


def decode(command: Command, raw: Raw) -> Reply:
    """Return the reply that ``raw`` contains, or raise BackendError if unreadable."""
    return decode_step(command, raw)[0]


def decode_step(command: Command, raw: Raw) -> tuple[Reply, bool, PushedGrant | None]:
    """Return the reply in ``raw``, and what the caller's own waiters must learn.

    That is: whether they must be woken, and the grant that was pushed to them, if any.

    Raises:
        BackendError: ``raw`` cannot be read, so it is unknown what was carried out.
    """
    decoder = _DECODERS[type(command)]
    items: list[Raw] = raw
    try:
        if type(items) is list and items and items[0] == _NOTIFIED:
            _, answer, *told = items
            return decoder(command, answer), True, _own_pushed(told)
        return decoder(command, raw), False, None
    except PARSE_ERRORS as exc:
        raise unreadable_answer(exc) from exc


def _own_pushed(told: list[Raw]) -> PushedGrant | None:
    if not told:
        return None
    since, expires, fence, proof = told
    since, expires, fence = map(number_of, (since, expires, fence))
    return PushedGrant(fence, since, expires, bytes_of(proof).decode())


def pushed_in(text: bytes) -> PushedGrant | None:
    """Return the pushed grant that a message names, "since,expires,fence,proof".

    None if the text is anything else: channels are no secret, so it may be.
    """
    found = _PUSHED.fullmatch(text)
    if found is None:
        return None
    since, expires, fence, proof = found.groups()
    return PushedGrant(int(fence), int(since), int(expires), proof.decode())


@contextmanager
def reading_answer() -> Generator[None, None, None]:
    """Context manager or decorator: turns ``PARSE_ERRORS`` into ``BackendError``."""
    try:
        yield
    except PARSE_ERRORS as exc:
        raise unreadable_answer(exc) from exc


def unreadable_answer(error: Exception) -> BackendError:
    """Return the error of an answer whose decoding raised ``error``."""
    return BackendError(
        what=f"the server's answer to a script cannot be read ({error!r})",
        hint="is it Redis or Valkey, with nothing between that changes answers?",
    )


def items_of(raw: Raw, count: int | None = None) -> list[Raw]:
    """Return ``raw`` if a list (of ``count`` items, if given); else raise TypeError."""
    items: list[Raw] = raw
    kind = type(items)
    if kind is not list or (count is not None and len(items) != count):
        raise TypeError(f"{kind.__name__} instead of a list")
    return items


def number_of(raw: Raw) -> int:
    """Return ``raw`` if it is an int and not a bool; else raise TypeError."""
    # Not isinstance: True is an int as well.
    if type(raw) is not int:
        raise TypeError(f"{type(raw).__name__} instead of a number")
    return raw


def bytes_of(raw: Raw) -> bytes:
    """Return ``raw`` if it is bytes (a bulk string); else raise TypeError."""
    if type(raw) is not bytes:
        raise TypeError(f"{type(raw).__name__} instead of a text")
    return raw


def who_of(text: str) -> Requester:
    """Return the requester that is stored in JSON as ``[host, pid, task, reason]``."""
    # A newer version may write more fields.
    host, pid, task, reason = items_of(json.loads(text))[:4]
    if not (type(host) is type(task) is type(reason) is str):
        raise TypeError("who asked is no text")
    return Requester(host, number_of(pid), task, reason)


def endings_of(text: str) -> tuple[LossNote, ...]:
    """Parse "fence,holder,reason;…", the stored notes on why grants ended early."""
    return tuple(_loss_note(part) for part in text.split(";") if part)


def grant_of(
    ticket: str,
    mode: Mode,
    fence: int,
    since: int,
    expires: int | None,
    details: str,
    limit: int = 0,
) -> Grant:
    """Return a ``Grant``; ``details`` is stored text, "holder,lock_delay,requester".

    ``since`` (time of the grant) and ``expires`` (None: never) are microseconds of the
    server's clock.
    """
    _, delay, who = details.split(",", 2)
    return Grant(ticket, mode, fence, since, expires, who_of(who), int(delay), limit)


def _loss_note(text: str) -> LossNote:
    fence, holder, reason = text.split(",")
    return LossNote(int(fence), holder, "stolen" if reason == "stolen" else "forced")


def _decode_acquire(command: Acquire, raw: Raw) -> Answer | NotHeld:
    # ``items_of`` and ``number_of`` in line: nearly every acquire comes here.
    items: list[Raw] = raw
    if type(items) is not list or type(items[0]) is not int:
        raise TypeError("no list that begins with a number")
    kind = items[0]
    if kind > 0:
        placed = command.more > 0 and (command.may_queue or command.mode is not PERMIT)
        return _new_grants(command.claims, command.mode, raw, command.limit, placed)
    if kind == _NOT_HELD and command.confirms:
        return _decode_not_held(command.claims[0].ticket, raw)
    if kind == _WAITING:
        return _decode_waiting(raw, command.mode)
    if kind == _REFUSED:
        return _decode_refusal(raw)
    return _stored_grants(command.claims, command.mode, raw)


def _decode_carried(command: Acquire, raw: Raw) -> Answer:
    answer = _decode_acquire(command, raw)
    assert not isinstance(answer, NotHeld), "a task that waits confirms nothing"
    return answer


def _new_grants(
    claims: Iterable[Claim],
    mode: Mode,
    raw: Raw,
    limit: int = 0,
    placed: bool = False,  # noqa: FBT001, FBT002 - positional: the hot path
) -> Granted:
    fence, now = raw  # the fence has been checked: it is above zero
    if type(now) is not int:
        raise TypeError("no time")
    grants: list[Grant] = []
    for claim in claims:
        lease = claim.lease
        ends = None if lease is None else now + lease
        ticket, who, delay = claim.ticket, claim.who, claim.lock_delay
        grants.append(Grant(ticket, mode, fence, now, ends, who, delay, limit))
        if mode is PERMIT:
            fence += 1  # readers share theirs
    return Granted(tuple(grants), now, placed)


def _stored_grants(claims: Iterable[Claim], mode: Mode, raw: Raw) -> Granted:
    kind, now, placed, fence, *items = raw
    asked = {claim.ticket for claim in claims}
    grants = tuple(
        _stored_grant(bytes_of(ticket).decode(), mode, number_of(fence), rest)
        for ticket, *rest in map(items_of, items)
    )
    # A grant of a ticket that was not asked for has no task that could release it.
    if kind != _LIVE or not grants or not asked.issuperset(g.ticket for g in grants):
        raise ValueError("grants that nobody asked for")
    return Granted(grants, number_of(now), bool(number_of(placed)))


def _stored_grant(ticket: str, mode: Mode, fence: int, rest: Raw) -> Grant:
    limit = 0
    if mode is PERMIT:  # which has a fence of its own
        *rest, own_fence, own_limit = items_of(rest, 5)
        fence, limit = number_of(own_fence), number_of(own_limit)
    since, ends, details = items_of(rest, 3)
    text, expires = bytes_of(details).decode(), _optional_time(ends)
    return grant_of(ticket, mode, fence, number_of(since), expires, text, limit)


def _decode_waiting(raw: Raw, mode: Mode = WRITE) -> Waiting:
    _, ahead, wait, now, *rest = raw
    limit = number_of(rest.pop(0)) if mode is PERMIT else 0
    return Waiting(
        number_of(ahead),
        _optional_time(wait),
        tuple(map(_holder_text, rest)),
        number_of(now),
        limit,
        foreign=any(bytes_of(holder)[:1] == _FOREIGN for holder in rest),
    )


def _decode_refusal(raw: Raw) -> Refused:
    why = bytes_of(raw[1]).decode()
    if why not in _REFUSALS:
        raise ValueError(f"refused, and why is {why!r}")
    return Refused(why, _optional_time(raw[2]), tuple(map(_holder_text, raw[3:])))


def _holder_text(raw: Raw) -> str:
    text = bytes_of(raw).decode("utf-8", "surrogateescape")
    if raw[:1] == _FOREIGN:
        return f"foreign {holder_of(text[1:])}"
    holder, _, who = text[1:].split(",", 2)
    return f"{MODES[text[0]]} {holder} {who_of(who)}"


def _optional_time(value: Raw) -> int | None:
    return None if number_of(value) < 0 else value


def _loss_reason(last: Raw, endings: Raw, ticket: str) -> LossReason:
    noted = endings_of(bytes_of(endings).decode())
    return why_gone(Doorman(last=number_of(last), endings=noted), holder_of(ticket))


def _decode_release(command: Release, raw: Raw) -> Released:
    # The short answers of fast.lua: 1, or the grant that was carried along.
    if type(raw) is int and raw == 1 and not command.then:
        return WAS_HELD
    items = items_of(raw)
    if number_of(items[0]) > 1:
        (ask,) = command.then
        return Released(held=True, then=(_decode_carried(ask, raw),))
    kind, held, last, endings, *answers = items
    if kind != _RELEASED or held not in _YES_NO:
        raise ValueError("no answer to a release")
    both = zip(command.then, answers, strict=True)
    then = tuple(_decode_carried(ask, answer) for ask, answer in both)
    if number_of(held) == 1:
        return Released(held=True, then=then)
    reason = _loss_reason(last, endings, command.ticket)
    return Released(held=False, reason=reason, then=then)


def _decode_withdraw(command: Withdraw, raw: Raw) -> Withdrawn:
    held = tuple(bytes_of(ticket).decode() for ticket in items_of(raw))
    if not set(held) <= set(command.tickets):
        raise ValueError("tickets that nobody withdrew")
    return Withdrawn(held)


def _decode_renew(command: Renew, raw: Raw) -> Renewed:
    last, endings, *items = items_of(raw)
    outcomes: list[Grant | NotHeld] = []
    for (ticket, _), item in zip(command.tickets, items, strict=True):
        if type(item) is int and item == 0:
            outcomes.append(NotHeld(_loss_reason(last, endings, ticket)))
            continue
        mode, *rest = items_of(item)
        kind = MODES[bytes_of(mode).decode()]
        outcomes.append(_stored_grant(ticket, kind, number_of(last), rest))
    return Renewed(tuple(outcomes))


def _decode_conversion(
    command: Downgrade | Upgrade, raw: Raw
) -> Granted | NotHeld | Conflict | Waiting | Refused:
    mode = Mode.READ if isinstance(command, Downgrade) else Mode.WRITE
    kind = number_of(items_of(raw)[0])
    if kind > 0:
        return _new_grants((command.claim,), mode, raw)
    if kind == _NOT_HELD:
        return _decode_not_held(command.ticket, raw)
    if kind == _CONFLICT:
        items_of(raw, 1)
        return Conflict()
    if kind == _WAITING:
        return _decode_waiting(raw)
    if kind == _REFUSED:
        return _decode_refusal(raw)
    return _stored_grants((command.claim,), mode, raw)


def _decode_not_held(ticket: str, raw: Raw) -> NotHeld:
    _, last, endings = raw
    return NotHeld(_loss_reason(last, endings, ticket))


def _decode_adopt(command: Adopt, raw: Raw) -> Granted | NotHeld:
    if number_of(items_of(raw)[0]) == _NOT_HELD:
        return _decode_not_held(command.ticket, raw)
    now, fence, mode, *rest = raw
    kind = MODES[bytes_of(mode).decode()]
    grant = _stored_grant(command.claim.ticket, kind, number_of(fence), rest)
    return Granted((grant,), now)


def yes_no(raw: Raw) -> bool:
    """Return True for 1 and False for 0; else raise ValueError or TypeError."""
    if number_of(raw) not in _YES_NO:
        raise ValueError(f"{raw} instead of 1 or 0")
    return bool(raw)


_DECODERS: dict[type[Any], Callable[[Any, Any], Reply]] = {
    Acquire: _decode_acquire,
    Release: _decode_release,
    Withdraw: _decode_withdraw,
    Renew: _decode_renew,
    Downgrade: _decode_conversion,
    Upgrade: _decode_conversion,
    Adopt: _decode_adopt,
    ForceRelease: lambda _, raw: Forced(yes_no(raw)),
}
