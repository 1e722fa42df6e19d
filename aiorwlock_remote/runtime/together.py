"""Several grants asked for at once: all, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anyio.lowlevel import checkpoint

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    Release,
    Reply,
    Withdraw,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
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
        BackendError: the store failed, or no thread can be had to renew them.
    """
    for request in requests:
        drive.keeper.ready(request.terms)
    sent_at = drive.host.clock.now()
    asked = [_ask(drive, request) for request in requests]
    leases: list[Lease] = []
    try:
        for one in asked:
            reply = await one.pending
            if isinstance(reply, Granted):
                leases.append(drive.lease(one.request, reply.grants[0], sent_at))
        await checkpoint()
    except BaseException as exc:
        await _take_back(drive, asked, certain=not isinstance(exc, BackendUnavailable))
        raise
    if len(leases) == len(asked) and not any(lease.expired() for lease in leases):
        return leases
    for lease in leases:
        drive.store.step(lease.resource, Release(lease.ticket)).unawaited()
    return None


def _ask(drive: Drive, request: Request) -> _Asked:
    claim = drive.asking.claim(request)
    command = Acquire((claim,), request.mode, request.policy)
    return _Asked(request, claim, drive.store.step(request.resource, command))


async def _take_back(drive: Drive, asked: Sequence[_Asked], *, certain: bool) -> None:
    withdrawn = [
        drive.store.step(
            one.request.resource,
            Withdraw(drive.gate_name, Mode.READ, (one.claim.ticket,), keep=True),
        )
        for one in asked
    ]
    for one, pending in zip(asked, withdrawn, strict=True):
        if certain:
            pending.unawaited()
        else:
            await drive.resolve(one.request.resource, pending, one.claim)
