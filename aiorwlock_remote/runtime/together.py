"""Several grants asked for at once: all, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    Reply,
)
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import checkpoint
from aiorwlock_remote.ports import Pending
from aiorwlock_remote.runtime.drive import Drive
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import Request


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    claim: Claim
    pending: Pending[Reply]


async def try_all(drive: Drive, requests: Sequence[Request]) -> list[Lease] | None:
    """A grant of each if all can be had right now, else None; takes no places.

    All is handed to the store before the first answer is awaited. Cancelled, or refused
    in part, what was granted goes back.

    Raises:
        AcquireUncertain: the store never said.
        Closed: the ``Locks`` was closed meanwhile.
        BackendError: the store failed, or no thread can be had to renew them.
    """
    for request in requests:
        drive.keeper.ready(request.terms)
    sent_at = drive.host.clock.now()
    asked = [_ask(drive, request) for request in requests]
    leases: list[Lease] = []
    with drive.closing.under(partial(_forget, drive, asked)):
        try:
            for one in asked:
                reply = await one.pending
                if isinstance(reply, Granted):
                    leases.append(drive.lease(one.request, reply.grants[0], sent_at))
            await checkpoint()
        except BaseException as exc:
            if isinstance(exc, BackendUnavailable):
                await _resolve(drive, asked)
            else:
                _forget(drive, asked)
            raise
    if len(leases) == len(asked) and not any(lease.expired() for lease in leases):
        return leases
    for lease in leases:
        drive.let_go(lease)
    return None


def _ask(drive: Drive, request: Request) -> _Asked:
    claim = drive.asking.claim(request)
    command = Acquire((claim,), request.mode, request.policy)
    return _Asked(request, claim, drive.store.step(request.resource, command))


def _take_back(drive: Drive, asked: Sequence[_Asked]) -> list[Pending[Reply]]:
    return [drive.take_back(one.request.resource, one.claim) for one in asked]


def _forget(drive: Drive, asked: Sequence[_Asked]) -> None:
    for pending in _take_back(drive, asked):
        pending.unawaited()


async def _resolve(drive: Drive, asked: Sequence[_Asked]) -> None:
    taken_back = _take_back(drive, asked)
    for one, pending in zip(asked, taken_back, strict=True):
        await drive.resolve(one.request.resource, pending, one.claim)
