"""Faults planted into one layer each: the simulation has to find every one of them.

Each is a context manager that breaks one rule of the library while it is active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.core import admission, fast_path, mode_queue, permits, transition
from aiorwlock_remote.core.commands import Command, Release, Withdraw
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord, QueueEntry
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.runtime import (
    acquirer,
    cleanup,
    lease,
    lease_keeper,
    store_client,
)
from aiorwlock_remote.runtime.lease import Lease, LeaseState
from aiorwlock_remote.runtime.lease_keeper import RenewalWorker
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue
from tests.cas import tables
from tests.simulation import store

Planted = Callable[[], AbstractContextManager[Any]]
PLANTED: dict[str, dict[str, Planted]] = {}
"""By the kind of store that has the layer, and by name."""


def plant(kind: str) -> Callable[[Planted], Planted]:
    """Decorator: plants a fault into a layer that stores of this kind have."""

    def keep(make: Planted) -> Planted:
        PLANTED.setdefault(kind, {})[make.__name__] = make
        return make

    return keep


# ------------------------------------------------------------------------- the core


@plant("core")
def a_reader_enters_beside_a_writer() -> AbstractContextManager[Any]:
    sound = admission.may_enter

    def broken(doorman: Doorman, entry: QueueEntry, *rest: Any) -> bool:
        reads = entry.mode is Mode.READ and doorman.writing
        return reads or sound(doorman, entry, *rest)

    return patch.object(transition, "may_enter", broken)


@plant("core")
def the_store_ends_leases_early() -> AbstractContextManager[Any]:
    sound = Grant.dead
    return patch.object(Grant, "dead", lambda self, now: sound(self, now + 400_000))


@plant("core")
def fences_do_not_rise() -> AbstractContextManager[Any]:
    def broken(doorman: Doorman, floor: int) -> int:
        return doorman.last or floor

    return in_all("new_fence", broken, transition, fast_path)


@plant("core")
def a_release_does_not_compare_the_ticket() -> AbstractContextManager[Any]:
    def broken(
        record: Doorman | None,
        seat: MutexRecord | None,
        command: Command,
        *rest: Any,
        **more: Any,
    ) -> Step:
        if isinstance(command, Release) and record and record.grants:
            command = replace(command, ticket=record.grants[0].ticket)
        return transition.transition(record, seat, command, *rest, **more)

    return patch.object(store, "transition", broken)


def other_withdrawals(**changes: Any) -> AbstractContextManager[Any]:
    """Change these fields of each withdrawal before it is carried out."""
    sound = transition.withdraw

    def broken(doorman: Doorman, command: Withdraw, *rest: Any) -> Any:
        return sound(doorman, replace(command, **changes), *rest)

    return patch.object(transition, "withdraw", broken)


@plant("core")
def a_withdrawal_gives_no_grant_back() -> AbstractContextManager[Any]:
    return other_withdrawals(tickets=())


@contextmanager
def in_all(name: str, broken: object, *modules: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, name, broken))
        yield


# -------------------------------------------------------------------- the semaphore


@plant("core")
def one_permit_too_many() -> AbstractContextManager[Any]:
    sound = permits.limit_for
    return patch.object(permits, "limit_for", lambda *args: sound(*args) + 1)


# ------------------------------------------------------------------- pushed grants


@plant("core")
def a_message_needs_no_proof() -> AbstractContextManager[Any]:
    return patch.object(PushedGrant, "proves", lambda self, ticket: True)


@plant("core")
def a_message_counts_from_its_arrival() -> AbstractContextManager[Any]:
    def broken(
        self: mode_queue.ModeQueue, first: Any, message: PushedGrant, now: float
    ) -> float | None:
        del self
        window = (message.expires - message.since) / 1e6
        return now + window if message.proves(first.ticket) else None

    return patch.object(mode_queue.ModeQueue, "_believed_until", broken)


# ---------------------------------------------------------------------- the queue


@plant("core")
def who_is_cancelled_keeps_its_grant() -> AbstractContextManager[Any]:
    sound = WaitQueue.leave

    def broken(self: WaitQueue, waiter: TaskWaiter, mode: Mode) -> None:
        if waiter.grant is not None:
            return  # its grant came while it was being cancelled
        sound(self, waiter, mode)

    return patch.object(WaitQueue, "leave", broken)


@plant("core")
def who_left_is_served() -> AbstractContextManager[Any]:
    def broken(self: mode_queue.ModeQueue, waiter: Any) -> None:
        self.waiters.remove(waiter)

    return patch.object(mode_queue.ModeQueue, "leave", broken)


# ---------------------------------------------------------------------- the client


@plant("core")
def a_lease_counts_from_the_reply() -> AbstractContextManager[Any]:
    sound = StoreClient.lease

    def broken(
        self: StoreClient, request: Any, grant: Grant, sent_at: float, *rest: Any
    ) -> Lease:
        del sent_at
        return sound(self, request, grant, self.clock.now(), *rest)

    return patch.object(StoreClient, "lease", broken)


@plant("core")
def a_lease_is_believed_to_its_last_moment_and_longer() -> AbstractContextManager[Any]:
    def broken(sent_at: float, length: float, margin: float | None) -> float:
        del margin
        return sent_at + 1.1 * length

    return in_all("local_deadline", broken, lease, lease_keeper)


@plant("core")
def an_expired_lease_is_valid() -> AbstractContextManager[Any]:
    def broken(self: Lease) -> bool:
        return self.state is LeaseState.LOST

    return patch.object(Lease, "expired", broken)


@plant("core")
def uncertain_requests_are_not_withdrawn() -> AbstractContextManager[Any]:
    return in_all("is_uncertain", lambda error: False, store_client, acquirer)


@plant("core")
def the_grants_of_a_closed_locks_stay() -> AbstractContextManager[Any]:
    return patch.object(Session, "grants", lambda self: [])


# ---------------------------------------------------------------------- the keeper


@plant("core")
def nothing_is_renewed() -> AbstractContextManager[Any]:
    return patch.object(RenewalWorker, "renew", lambda self, leases: None)


@plant("core")
def a_renewal_counts_from_its_reply() -> AbstractContextManager[Any]:
    sound = Lease.renewed

    def broken(self: Lease, sent_at: float, length: float | None) -> None:
        del sent_at
        sound(self, self._clock.now(), length)

    return patch.object(Lease, "renewed", broken)


@plant("core")
def a_failed_renewal_counts() -> AbstractContextManager[Any]:
    def broken(self: RenewalWorker, leases: list[Lease], error: Exception) -> None:
        del error
        for one in leases:
            one.renewed(self._clock.now(), one.terms.lease)
            self._check_again(one)

    return patch.object(RenewalWorker, "_failed", broken)


# -------------------------------------------------------------------- the clean-up


@plant("core")
def failed_clean_up_is_not_repeated() -> AbstractContextManager[Any]:
    return patch.object(
        cleanup.CleanupRetrier, "repeat", lambda self, *args, **options: None
    )


# --------------------------------------------------------------------- the tables


@plant("tables")
def a_swap_does_not_compare() -> AbstractContextManager[Any]:
    sound = tables.Tables.swap

    def broken(self: tables.Tables, asked: Any) -> Any:
        key = asked["i_kind"], asked["i_number"]
        created, version, record = self.doormen.get(key, (self.now(), None, None))
        ticket, since = self.seats.get(key, (None, None))
        found = {"i_version": version, "i_ticket": ticket, "i_since": since}
        del created, record
        return sound(self, {**asked, **found})

    return patch.object(tables.Tables, "swap", broken)


@plant("tables")
def a_process_chooses_its_fences() -> AbstractContextManager[Any]:
    sound = tables.Tables.swap

    def broken(self: tables.Tables, asked: Any) -> Any:
        if isinstance(asked["n_fence"], int):
            asked = {**asked, "n_fence": 1, "n_record": f"1{asked['n_record']}"}
            found = sound(self, {**asked, "n_fence": None})
            return replace(found, fence=1) if found.done else found
        return sound(self, asked)

    return patch.object(tables.Tables, "swap", broken)


@plant("tables")
def half_of_the_clients_know_a_later_time_than_the_server() -> AbstractContextManager[
    Any
]:
    sound, began = ServerTime.bounds, count()
    ahead: dict[int, int] = {}

    def broken(self: ServerTime, at: int) -> Any:
        bounds = sound(self, at)
        number = ahead.setdefault(id(self), next(began))
        return replace(bounds, least=bounds.least + number % 2 * 1_500_000)

    return patch.object(ServerTime, "bounds", broken)
