"""Several grants asked for at once: all, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from aiorwlock_remote._util.pending import checkpoint
from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Reply
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.ports import Pending
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import StoreClient


@dataclass(slots=True)
class _PendingGrant:
    """``pending``: the answer to the last request that ``send`` sent."""

    request: AcquireRequest
    claim: Claim
    send: Callable[[], Pending[Reply]]
    pending: Pending[Reply]


async def try_all(
    drive: StoreClient, requests: Sequence[AcquireRequest]
) -> list[Lease] | None:
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
                reply = await _answer(drive, one)
                if isinstance(reply, Granted):
                    leases.append(drive.lease(one.request, reply.grants[0], sent_at))
            await checkpoint()
        except BaseException as exc:
            taken_back = _take_back(drive, asked)
            if isinstance(exc, Exception):
                for one, pending in taken_back:
                    error = one.pending.error or exc
                    await drive.resolve(error, one.request.resource, pending, one.claim)
            for _, pending in taken_back:
                pending.log_failure()
            raise
    if len(leases) == len(asked) and not any(lease.expired() for lease in leases):
        return leases
    for lease in leases:
        drive.release_in_background(lease)
    return None


def _ask(drive: StoreClient, request: AcquireRequest) -> _PendingGrant:
    claim = drive.asking.claim(request)
    command = Acquire((claim,), request.mode, request.policy)
    send = partial(drive.store.step, request.resource, command)
    return _PendingGrant(request, claim, send, send())


async def _answer(drive: StoreClient, one: _PendingGrant) -> Reply:
    """The answer to what was sent already, or to one of the next:
    ``StoreClient.answer``.
    """
    sent = False

    async def ask() -> Reply:
        nonlocal sent
        if sent:
            one.pending = one.send()
        sent = True
        return await one.pending

    return await drive.answer(ask)


def _take_back(
    drive: StoreClient, asked: Sequence[_PendingGrant]
) -> list[tuple[_PendingGrant, Pending[Reply]]]:
    """What was granted, or perhaps was."""
    return [
        (one, drive.withdraw(one.request.resource, one.claim))
        for one in asked
        if one.pending.error is None or is_uncertain(one.pending.error)
    ]


def _forget(drive: StoreClient, asked: Sequence[_PendingGrant]) -> None:
    for _, pending in _take_back(drive, asked):
        pending.log_failure()
