"""Faults that break no rule at once: they show in times, in an order, in what is left.

They were written before ``bounds``, which finds them; before that 6 of 34 were found.
Four are not found in 300 seeds, and not here: a writer that does not wait for readers
of its own process, a late confirmation that the store takes for a new request (the
client gives that grant back by its fence), a lost lease that a late renewal brings back
(the store keeps it for longer than its holder believes), and failed renewals that are
repeated only shortly before the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.core import (
    admission,
    fast_path,
    mode_queue,
    mutex_record,
    permits,
    transition,
)
from aiorwlock_remote.core.commands import Acquire, Claim, Command, Release, Withdraw
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    MutexRecord,
    QueueEntry,
)
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.runtime import conversion, lease, lease_keeper
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue
from tests.simulation import store
from tests.simulation.planted import in_all, other_withdrawals, plant

Broken = AbstractContextManager[Any]


def other_steps(kind: type[Command], **changes: Any) -> Broken:
    """Change these fields of the result of each step of such a command."""

    def broken(
        record: Doorman | None,
        seat: MutexRecord | None,
        command: Command,
        *rest: Any,
        **more: Any,
    ) -> Step:
        step = transition.transition(record, seat, command, *rest, **more)
        return replace(step, **changes) if isinstance(command, kind) else step

    return patch.object(store, "transition", broken)


# ------------------------------------------------------------------------ wake-ups


@plant("core")
def a_release_wakes_nobody() -> Broken:
    return other_steps(Release, wakes=())


@plant("core")
def only_the_first_reader_is_woken() -> Broken:
    def broken(*args: Any, **more: Any) -> Step:
        step = transition.transition(*args, **more)
        return replace(step, wakes=step.wakes[:1])

    return patch.object(store, "transition", broken)


@plant("core")
def a_withdrawal_wakes_nobody() -> Broken:
    return other_steps(Withdraw, wakes=())


@plant("core")
def a_wake_up_during_a_request_is_forgotten() -> Broken:
    sound = ModeQueue.wake

    def broken(self: ModeQueue) -> Acquire | None:
        command = sound(self)
        self._woken = False
        return command

    return patch.object(ModeQueue, "wake", broken)


@plant("core")
def a_waiter_never_polls() -> Broken:
    return patch.object(mode_queue, "next_poll", lambda *args: 1e6)


# --------------------------------------------------------------------------- order


@plant("core")
def newcomers_pass_the_queue() -> Broken:
    sound = admission.may_enter

    def broken(doorman: Doorman, entry: QueueEntry, policy: Policy, now: int) -> bool:
        writes = entry.mode is Mode.WRITE and doorman.barred_until <= now
        return (writes and not doorman.grants) or sound(doorman, entry, policy, now)

    return patch.object(transition, "may_enter", broken)


@plant("core")
def readers_join_while_a_writer_waits() -> Broken:
    return patch.object(
        admission, "writer_waits", lambda d, now: d.upgrader is not None
    )


@plant("core")
def a_semaphore_forgets_who_waits_before() -> Broken:
    return patch.object(permits, "_before", lambda *args: [])


@plant("core")
def a_busy_process_keeps_its_place() -> Broken:
    sound = Acquire.entry_behind

    def broken(self: Acquire, own: QueueEntry, number: int, now: int) -> QueueEntry:
        return replace(sound(self, own, number, now), number=own.number)

    return patch.object(Acquire, "entry_behind", broken)


@plant("core")
def the_last_task_of_a_process_is_served_first() -> Broken:
    sound = ModeQueue.join

    def broken(self: ModeQueue, waiter: Waiter, **hold: bool) -> Acquire | None:
        command = sound(self, waiter, **hold)
        if self.waiters[-1] is waiter and waiter not in self._asked:
            self.waiters = deque([waiter, *list(self.waiters)[:-1]])
        return command

    return patch.object(ModeQueue, "join", broken)


@plant("core")
def a_missed_claim_keeps_its_turn() -> Broken:
    return patch.object(QueueEntry, "missed_claim", lambda self, now: False)


# -------------------------------------------------------------------- what is left


@plant("core")
def a_withdrawal_leaves_the_entry() -> Broken:
    return other_withdrawals(keep=True)


@plant("core")
def an_upgrade_that_is_given_up_leaves_its_slot() -> Broken:
    return other_withdrawals(upgrader="")


@plant("core")
def a_ticket_that_waits_in_the_entry_is_not_withdrawn() -> Broken:
    sound = ModeQueue.leave

    def broken(self: ModeQueue, waiter: Waiter) -> Withdraw | None:
        self._unsure.discard(waiter)
        return sound(self, waiter)

    return patch.object(ModeQueue, "leave", broken)


@plant("core")
def the_last_task_keeps_the_entry() -> Broken:
    sound = ModeQueue._note_emptied

    def broken(self: ModeQueue) -> bool:
        sound(self)
        return False

    return patch.object(ModeQueue, "_note_emptied", broken)


@plant("core")
def a_grant_for_a_task_that_was_cancelled_stays() -> Broken:
    sound = WaitQueue.leave

    def broken(self: WaitQueue, waiter: TaskWaiter, mode: Mode) -> None:
        if waiter.grant is None or mode is not Mode.READ:
            sound(self, waiter, mode)

    return patch.object(WaitQueue, "leave", broken)


@plant("core")
def half_of_two_locks_stays() -> Broken:
    return patch.object(StoreClient, "release_in_background", lambda self, lease: None)


# --------------------------------------------------------------- how long it lasts


@plant("core")
def the_store_counts_a_lease_short() -> Broken:
    sound = Claim.grant

    def broken(self: Claim, mode: Mode, fence: int, now: int, limit: int = 0) -> Grant:
        if self.lease is not None:
            self = replace(self, lease=self.lease * 9 // 10)
        return sound(self, mode, fence, now, limit)

    return patch.object(Claim, "grant", broken)


@plant("core")
def a_renewal_is_for_half_the_lease() -> Broken:
    sound = mutex_record.longer

    def broken(expires: int | None, length: int | None, now: int) -> int | None:
        return sound(expires, None if length is None else length // 2, now)

    return patch.object(transition, "longer", broken)


@plant("core")
def no_margin_is_kept() -> Broken:
    def broken(sent_at: float, length: float, margin: float | None) -> float:
        del margin
        return sent_at + length

    return in_all("local_deadline", broken, lease, lease_keeper)


@plant("core")
def a_grant_from_the_queue_counts_from_its_reply() -> Broken:
    sound = ModeQueue.answered

    def broken(
        self: ModeQueue, answer: Any, sent_at: float, now: float, random: float
    ) -> Effects:
        del sent_at
        return sound(self, answer, now, now, random)

    return patch.object(ModeQueue, "answered", broken)


@plant("core")
def an_extension_counts_from_its_reply() -> Broken:
    sound = StoreClient.renew

    async def broken(self: StoreClient, one: Lease, seconds: float | None) -> Any:
        result = await sound(self, one, seconds)
        one.renewed(self.clock.now(), seconds)
        return result

    return patch.object(StoreClient, "renew", broken)


@plant("core")
def a_conversion_counts_from_its_reply() -> Broken:
    sound = conversion._move

    async def broken(client: StoreClient, *rest: Any) -> Lease | None:
        moved = await sound(client, *rest)
        if moved is not None:
            moved.renewed(client.clock.now(), moved.terms.lease)
        return moved

    return patch.object(conversion, "_move", broken)


def believed_until(other: Callable[[float, Waiter, float], float]) -> Broken:
    """Let ``other(end, waiter, now)`` be the end of each pushed grant instead."""
    sound = ModeQueue._believed_until

    def broken(
        self: ModeQueue, first: Waiter, message: PushedGrant, now: float
    ) -> float | None:
        ends = sound(self, first, message, now)
        return None if ends is None else other(ends, first, now)

    return patch.object(ModeQueue, "_believed_until", broken)


@plant("core")
def a_pushed_grant_is_believed_without_margin() -> Broken:
    return believed_until(lambda ends, first, now: ends + first.margin)


@plant("core")
def a_pushed_grant_has_its_whole_lease_at_once() -> Broken:
    def broken(ends: float, first: Waiter, now: float) -> float:
        del ends
        return now + 0.9 * (first.claim.seconds or 0.0)

    return believed_until(broken)


@plant("core")
def renewals_are_late() -> Broken:
    return patch.object(lease, "RENEWALS_PER_LEASE", 1.15)


# ------------------------------------------------- other programs, clocks, failovers


@plant("core")
def a_foreign_record_keeps_nobody_out() -> Broken:
    return patch.object(transition, "foreign_seat", lambda *args, **more: None)


@plant("core")
def a_release_deletes_whatever_record_there_is() -> Broken:
    return other_steps(Release, seat=None)


@plant("core")
def fences_are_the_time() -> Broken:
    def broken(doorman: Doorman, floor: int) -> int:
        del doorman
        return floor

    return in_all("new_fence", broken, transition, fast_path, admission, permits)


@plant("failovers")
def a_failover_renews_nothing() -> Broken:
    return patch.object(LeaseKeeper, "renew_all", lambda self: None)
