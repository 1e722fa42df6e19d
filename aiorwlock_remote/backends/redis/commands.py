"""A command as the arguments of a script; ``lua/main.lua`` says what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import Arg, Request
from aiorwlock_remote.backends.redis.keys import Keys
from aiorwlock_remote.backends.redis.replies import decode, decode_step
from aiorwlock_remote.backends.redis.snapshots import decode_look
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.ticket import Mode, Policy, holder_of

__all__ = ["decode", "decode_look", "decode_step", "encode", "encode_look"]

_MODES = {Mode.READ: "r", Mode.WRITE: "w", None: ""}
WRITE = Mode.WRITE


def encode(keys: Keys, command: Command, gate: str = "") -> Request:
    """The script that carries out a command, and what follows its hash.

    ``gate`` is the process's own: waking it is part of the answer (``decode_step``),
    all others get a message. Without it they get one, too.
    """
    return _ENCODERS[type(command)](keys, command, gate)


def encode_look(keys: Keys) -> Request:
    """The script that reads a resource, for ``decode_look``."""
    return keys.look, keys.args


def _acquire(keys: Keys, command: Acquire, gate: str) -> Request:
    claims = command.claims
    ask = _ask_of(command, gate)
    if len(claims) != 1:
        return keys.enter, (*keys.args, "a", gate, ask, *_claims(claims))
    claim = claims[0]
    lease = claim.lease
    kind = "a"
    if lease and not (command.more or claim.lock_delay):
        kind = "w" if command.mode is WRITE else "e"
    shown = "" if lease is None else lease
    return keys.enter, (
        *(*keys.args, kind, gate, ask),
        *(claim.ticket, shown, _details(claim)),
    )


def _release(keys: Keys, command: Release, gate: str) -> Request:
    then = command.then
    kind = "h" if len(then) == 1 and _carries_on(then[0], gate) else "r"
    args = (*keys.args, kind, gate, _MODES[command.mode], command.ticket)
    for ask in then:
        claims = _claims(ask.claims)
        args += (len(ask.claims), _ask_of(ask, gate), *claims)
    return keys.leave, args


def _carries_on(ask: Acquire, gate: str) -> bool:
    """Whether it is one writer of our own process."""
    claim = ask.claims[0]
    ours = ask.mode is WRITE and ask.client_id == gate
    return ours and claim.lease is not None and not claim.lock_delay


def _withdraw(keys: Keys, command: Withdraw, gate: str) -> Request:
    return keys.leave, (
        *keys.args,
        "t",
        gate,
        _MODES[command.mode],
        int(command.keep),
        command.upgrader,
        command.client_id,
        *command.tickets,
    )


def _renew(keys: Keys, command: Renew, gate: str) -> Request:
    leases = dict(command.tickets)
    args: list[Arg] = [*keys.args, "n", gate]
    for ticket, _ in command.tickets:
        lease = leases[ticket]
        args += (ticket, "" if lease is None else lease)
    return keys.leave, tuple(args)


def _downgrade(keys: Keys, command: Downgrade, gate: str) -> Request:
    claim = _claims((command.claim,))
    return keys.leave, (*keys.args, "d", gate, command.ticket, *claim)


def _adopt(keys: Keys, command: Adopt, gate: str) -> Request:
    claim = _claims((command.claim,))
    return keys.leave, (*keys.args, "o", gate, command.ticket, *claim)


def _upgrade(keys: Keys, command: Upgrade, gate: str) -> Request:
    life = command.entry_ttl if command.may_wait else 0
    claim = _claims((command.claim,))
    return keys.enter, (
        *(*keys.args, "u", gate, command.ticket, *claim),
        *(life, command.client_id),
    )


def _force(keys: Keys, command: ForceRelease, gate: str) -> Request:
    if command.seat is not None:
        seat = command.seat.encode("utf-8", "surrogateescape")
        return keys.leave, (*keys.args, "s", gate, seat)
    return keys.leave, (*keys.args, "f", gate, command.holder, command.fence)


_ENCODERS: dict[type[Any], Callable[[Keys, Any, str], Request]] = {
    Acquire: _acquire,
    Release: _release,
    Withdraw: _withdraw,
    Renew: _renew,
    Downgrade: _downgrade,
    Upgrade: _upgrade,
    Adopt: _adopt,
    ForceRelease: _force,
}


def _claims(claims: tuple[Claim, ...]) -> tuple[Arg, ...]:
    args: list[Arg] = []
    for claim in claims:
        lease = claim.lease
        args += (claim.ticket, "" if lease is None else lease, _details(claim))
    return tuple(args)


def _details(claim: Claim) -> str:
    who = claim.who
    shown = _who(who.host, who.pid, who.task, who.reason)
    return f"{holder_of(claim.ticket)},{claim.lock_delay},{shown}"


@lru_cache(maxsize=1024)
def _who(host: str, pid: int, task: str, reason: str) -> str:
    return json.dumps([host, pid, task, reason], separators=(",", ":"))


def _ask_of(command: Acquire, gate: str) -> str:
    return _ask(
        command.mode,
        command.policy,
        command.may_queue,
        command.more,
        command.waiting,
        command.max_waiters,
        command.entry_ttl,
        command.claim_window,
        "=" if command.client_id == gate else command.client_id,
    )


@lru_cache(maxsize=4096)
def _ask(
    mode: Mode,
    policy: Policy,
    may_queue: bool,  # noqa: FBT001 - positional: the cache's key
    more: int,
    waiting: int,
    limit: int | None,
    life: int,
    window: int,
    gate: str,
) -> str:
    most = "" if limit is None else limit
    return (
        f"{_MODES[mode]},{policy},{int(may_queue)},{more},{waiting},{most},"
        f"{life},{window},{gate}"
    )
