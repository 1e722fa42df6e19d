"""Downgrade and upgrade: one step each, a new phase, a new ``Held``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from aiorwlock_remote.core.commands import (
    Conflict,
    Downgrade,
    Granted,
    NotHeld,
    Reply,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.lease import check_seconds, micros
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.errors import LockLost, LockTimeout, UpgradeConflict
from aiorwlock_remote.runtime.drive import Request
from aiorwlock_remote.runtime.lease import State

if TYPE_CHECKING:
    from aiorwlock_remote.locks.held import Held
    from aiorwlock_remote.locks.session import Session


async def downgrade(session: Session, held: Held) -> Held:
    """Writer → reader."""
    request = _request(session, held, Mode.READ)
    claim = session.drive.claim(request)
    command = Downgrade(held.lease.ticket, claim)
    reply, sent_at = await _step(session, held, command)
    if isinstance(reply, NotHeld):
        raise _gone(held, reply)
    assert isinstance(reply, Granted)
    return _moved(session, held, request, reply, sent_at)


async def upgrade(session: Session, held: Held, timeout: float | None) -> Held | None:
    """Reader → writer; None if the others did not leave in time."""
    check_seconds("timeout", timeout)
    request = _request(session, held, Mode.WRITE)
    pace = session.drive.store.pace
    command = Upgrade(
        held.lease.ticket,
        session.drive.claim(request),
        session.drive.gate_name,
        may_wait=timeout is None or timeout > 0,
        place_life=micros(pace.place_life),
    )
    if not command.may_wait:
        return await _try_upgrade(session, held, request, command)
    bell = session.drive.room.listen(held.lease.resource)
    try:
        with anyio.move_on_after(timeout):
            while True:
                bell.clear()
                upgraded = await _try_upgrade(session, held, request, command)
                if upgraded is not None:
                    return upgraded
                await bell.wait(pace.poll_min)
                held.check()
        return held.successor
    finally:
        session.drive.room.unlisten(held.lease.resource, bell)
        if held.successor is None:
            _step_back(session, held, ())


def timed_out(held: Held, timeout: float | None) -> LockTimeout:
    """The other readers did not leave."""
    return LockTimeout(resource=held.resource, mode="write", timeout=timeout or 0.0)


async def _try_upgrade(
    session: Session, held: Held, request: Request, command: Upgrade
) -> Held | None:
    reply, sent_at = await _step(session, held, command)
    if isinstance(reply, Granted):
        return _moved(session, held, request, reply, sent_at)
    if isinstance(reply, NotHeld):
        raise _gone(held, reply)
    if isinstance(reply, Conflict):
        raise UpgradeConflict(resource=held.resource)
    return None


async def _step(
    session: Session, held: Held, command: Downgrade | Upgrade
) -> tuple[Reply, float]:
    sent_at = session.host.clock.now()
    try:
        return await session.drive.store.step(held.lease.resource, command), sent_at
    except BaseException:
        # Whether it was moved is not known any more: both tickets are given up.
        held.lease.end(State.RELEASED)
        session.forget(held)
        _step_back(session, held, (command.ticket, command.claim.ticket))
        raise


def _step_back(session: Session, held: Held, tickets: tuple[str, ...]) -> None:
    lease, gate = held.lease, session.drive.gate_name
    command = Withdraw(gate, Mode.READ, tickets, keep=True, upgrader=lease.ticket)
    session.drive.store.step(lease.resource, command).unawaited()


def _gone(held: Held, reply: NotHeld) -> LockLost:
    held.lease.lose(reply.reason)
    return held.loss()


def _request(session: Session, held: Held, mode: Mode) -> Request:
    session.check()
    held.check()
    return Request(
        resource=held.lease.resource,
        mode=mode,
        policy=Policy.FAIR,
        terms=held.options.terms,
        lock_delay=held.options.lock_delay,
    )


def _moved(
    session: Session, held: Held, request: Request, reply: Granted, sent_at: float
) -> Held:
    old = held.lease
    lease = session.drive.lease(request, reply.grants[0], sent_at)
    old.end(State.RELEASED)
    session.forget(held)
    new = session.admit(lease, held.options, owned_by_task=held.owned_by_task)
    if held.owned_by_task:  # it stays with the task that entered
        lease.owner, lease.owner_gone = old.owner, old.owner_gone
    held.successor = new
    for scope in held.scopes:
        new.watch(scope)
    return new
