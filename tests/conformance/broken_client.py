"""Faults of the client, one a function, to show that cases and tests can fail.

Each breaks one rule of the library, for as long as the ``MonkeyPatch`` lasts that it is
given. What a store does wrong stands in ``broken.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from pytest import MonkeyPatch  # noqa: PT013 - the one name of it, in each function

from aiorwlock_remote import registry
from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core import names
from aiorwlock_remote.core.commands import Command, Withdraw
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.names import Resource, ResourceId
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import (
    Closed,
    ConfigurationError,
    LockTimeout,
    NotOwner,
    WouldDeadlock,
)
from aiorwlock_remote.locks import (
    client,
    held,
    info,
    lock,
    multi,
    options,
    session,
    ticket_calls,
    tickets,
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.info import LockInfo
from aiorwlock_remote.locks.lock import RWLock
from aiorwlock_remote.locks.multi import Multi
from aiorwlock_remote.locks.session import (
    HeldState,
    Mover,
    ReleasesBody,
    Session,
    TaskRef,
)
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime import (
    acquirer,
    conversion,
    lease,
    lease_keeper,
    store_client,
    wait_queue,
)
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.cleanup import CleanupRetrier
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease, LeaseState, LeaseTerms
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue, WaitQueueRegistry

T = TypeVar("T")

Breaks = Callable[[MonkeyPatch], None]
"""Plants a fault into the client."""

# ----------------------------------------------------------------------- the names


def ids_count_by_their_type(patch: MonkeyPatch) -> None:
    """The ids 42 and "42" are two locks."""

    def typed(self: Session, kind: str, number: ResourceId) -> Resource:
        return names.resource(kind, repr(number), self.prefix)

    patch.setattr(Session, "resource", typed)


def any_name_will_do(patch: MonkeyPatch) -> None:
    """A name may be anything that has a text."""

    def taken(self: Session, kind: str, number: ResourceId) -> Resource:
        return Resource(f"{self.prefix}{kind!r}", f"{number!r}")

    patch.setattr(Session, "resource", taken)


def locks_have_no_prefix(patch: MonkeyPatch) -> None:
    """A prefix is left out of the names that are asked for."""

    def bare(self: Session, kind: str, number: ResourceId) -> Resource:
        del self
        return names.resource(kind, number)

    patch.setattr(Session, "resource", bare)


def a_prefix_is_a_type(patch: MonkeyPatch) -> None:
    """What lies outside of a prefix is listed under it."""
    sound = names.resource_under_prefix

    def lenient(found: Resource, prefix: str) -> Resource:
        return sound(found, prefix) or found

    patch.setattr(client, "resource_under_prefix", lenient)


# -------------------------------------------------------------------- what is refused


def any_option_will_do(patch: MonkeyPatch) -> None:
    """No option of a lock is checked."""
    unchecked = dict.fromkeys(options._CHECKS, lambda _: None)
    patch.setattr(options, "_CHECKS", unchecked)


def any_seconds_will_do(patch: MonkeyPatch) -> None:
    """No timeout, age or lease of a call is checked."""
    for module in (lock, client, multi, held, ticket_calls):
        patch.setattr(module, "check_seconds", lambda *_, **__: None)


def any_ticket_will_do(patch: MonkeyPatch) -> None:
    """No ticket of a published call is checked."""
    patch.setattr(ticket_calls, "check_ticket", str)


def any_url_will_do(patch: MonkeyPatch) -> None:
    """What a URL says is not read."""
    sound = registry.find

    def found(_: str) -> Callable[..., Any]:
        opener = sound("memory")
        return lambda _, *rest: opener(parse("memory://"), *rest)

    patch.setattr(registry, "find", found)


def bad_tickets_are_defects(patch: MonkeyPatch) -> None:
    """A text that is no ticket raises whatever its decoding raises."""
    sound = tickets.read

    def raw(ticket: str) -> tickets.TransferTicket:
        try:
            return sound(ticket)
        except ConfigurationError as exc:
            raise ValueError(ticket) from exc

    patch.setattr(tickets, "read", raw)


def an_own_task_may_wait(patch: MonkeyPatch) -> None:
    """A task that holds a resource may ask for it again."""

    async def unchecked(self: Session, resource: Resource) -> TaskRef:
        del resource
        self.check()
        return self.task()

    patch.setattr(Session, "may_ask", unchecked)


def one_lock_a_task(patch: MonkeyPatch) -> None:
    """A task that holds a resource may not ask for another one."""

    async def strict(self: Session, resource: Resource) -> TaskRef:
        if self._grants:
            raise WouldDeadlock(resource=resource.label, held_mode="write")
        return self.task()

    patch.setattr(Session, "may_ask", strict)


def leaving_is_for_all(patch: MonkeyPatch) -> None:
    """A lock may be left by a task that has not entered it."""
    sound = lock._Lock.__aexit__

    async def lenient(self: Any, *error: Any) -> None:  # noqa: ANN401 - of any lock
        if self._entered:
            await sound(self, *error)

    patch.setattr(lock._Lock, "__aexit__", lenient)


def the_writer_is_a_reader(patch: MonkeyPatch) -> None:
    """The other spelling of ``writer`` is that of ``reader``."""
    patch.setattr(RWLock, "writer_lock", RWLock.reader)


# ------------------------------------------------------------------ how a grant ends


def endings_are_forgotten(patch: MonkeyPatch) -> None:
    """A lease that was released or moved counts as held."""

    def still_held(self: Lease, state: LeaseState) -> bool:
        del state
        return self.state is LeaseState.HELD

    patch.setattr(Lease, "end", still_held)


def giving_back_is_forgotten(patch: MonkeyPatch) -> None:
    """What is given back without waiting for the reply is not released."""
    patch.setattr(HeldState, "give_back", lambda _: None)


def detaching_is_forgotten(patch: MonkeyPatch) -> None:
    """A grant that was given away is still this client's."""
    patch.setattr(HeldState, "detach", lambda _: None)


def moves_are_forgotten(patch: MonkeyPatch) -> None:
    """An ``async with`` releases the grant that it entered, and no newer one."""
    patch.setattr(HeldState, "newest", property(lambda state: state))


def releases_begin_with_a_wait(patch: MonkeyPatch) -> None:
    """A release is sent after the first await, which may be cancelled."""
    sound = HeldState.release

    async def late(self: HeldState, *sender: Any) -> bool:  # noqa: ANN401 - as it has it
        await checkpoint()
        return await sound(self, *sender)

    patch.setattr(HeldState, "release", late)


def the_dropped_are_forgotten(patch: MonkeyPatch) -> None:
    """A grant whose ``Held`` is dropped goes on without a warning."""
    patch.setattr(Held, "__del__", lambda _: None)


def ended_tasks_are_kept(patch: MonkeyPatch) -> None:
    """The grant of a task that has ended is renewed."""
    patch.setattr(Lease, "abandoned", lambda _: False)


def leases_are_believed_too_long(patch: MonkeyPatch) -> None:
    """A holder counts on a tenth more than its lease."""

    def later(sent_at: float, length: float, margin: float | None) -> float:
        del margin
        return sent_at + 1.1 * length

    patch.setattr(lease, "local_deadline", later)
    patch.setattr(lease_keeper, "local_deadline", later)


def no_time_is_up(patch: MonkeyPatch) -> None:
    """``max_hold`` and ``max_stall`` count for nothing."""
    sound = LeaseTerms.__post_init__

    def unlimited(self: LeaseTerms) -> None:
        object.__setattr__(self, "max_hold", None)
        object.__setattr__(self, "max_stall", None)
        sound(self)

    patch.setattr(LeaseTerms, "__post_init__", unlimited)


# ------------------------------------------------------------- how a loss is reported


def losses_go_first(patch: MonkeyPatch) -> None:
    """A body's own error is replaced by the loss of its grant."""
    _ends_bodies(patch, quietly=False)


def losses_are_swallowed(patch: MonkeyPatch) -> None:
    """A body that ended in ignorance of its loss gets no error."""
    _ends_bodies(patch, quietly=True)


def _ends_bodies(patch: MonkeyPatch, *, quietly: bool) -> None:
    async def ends(
        scope: anyio.CancelScope | None, release: ReleasesBody, *exc_info: *ExcInfo
    ) -> bool:
        try:
            if scope is not None:
                scope.__exit__(*exc_info)
        finally:
            await release(quietly=quietly)
        return False

    patch.setattr(session, "end_body", ends)


def all_bodies_are_cancelled(patch: MonkeyPatch) -> None:
    """A loss cancels the body, whatever ``on_lost`` asks."""
    sound = HeldState.enter

    def watched(self: HeldState) -> None:
        sound(self)
        if self.options.on_lost != "raise" and self._scope is not None:
            self.watch(self._scope)

    patch.setattr(HeldState, "enter", watched)


def no_body_is_cancelled(patch: MonkeyPatch) -> None:
    """A loss cancels nothing."""
    patch.setattr(HeldState, "watch", lambda *_: None)


def callbacks_are_called_twice(patch: MonkeyPatch) -> None:
    """A callback is called twice for one loss."""

    def twice(_: object, __: str, call: Callable[..., object], *args: object) -> None:
        call(*args)
        call(*args)

    patch.setattr(session, "guarded", twice)


def guards_lose_the_result(patch: MonkeyPatch) -> None:
    """``guard`` returns nothing."""
    sound = Held.guard

    async def empty(self: Held, awaitable: Awaitable[T]) -> None:
        await sound(self, awaitable)

    patch.setattr(Held, "guard", empty)


def a_guard_is_deaf(patch: MonkeyPatch) -> None:
    """``guard`` awaits what it is given, and looks at nothing."""

    async def unguarded(self: Held, awaitable: Awaitable[T]) -> T:
        del self
        return await awaitable

    patch.setattr(Held, "guard", unguarded)


# -------------------------------------------------------------------- the waiting


def the_newest_task_is_served(patch: MonkeyPatch) -> None:
    """Of the tasks of one client, the one that asked last is next."""
    sound = ModeQueue.join

    def first(self: ModeQueue, waiter: Waiter, *, hold: bool) -> Any:  # noqa: ANN401 - as it has it
        sent = sound(self, waiter, hold=hold)
        if len(self.waiters) > 1:
            self.waiters.rotate(1)
        return sent

    patch.setattr(ModeQueue, "join", first)


def writers_are_sent_at_once(patch: MonkeyPatch) -> None:
    """A writer passes the readers that wait for a reply before they can be sent."""
    patch.setattr(ModeQueue, "unsent", False)


def one_task_leaves_for_all(patch: MonkeyPatch) -> None:
    """When one task gives up, the entry of all tasks of its client is withdrawn."""
    sound = ModeQueue.leave

    def leaves(self: ModeQueue, waiter: Waiter) -> Withdraw | None:
        sound(self, waiter)
        return Withdraw(self._client_id, self.mode, (waiter.ticket,), keep=False)

    patch.setattr(ModeQueue, "leave", leaves)


def all_tasks_are_served(patch: MonkeyPatch) -> None:
    """All writers of one client enter by the grant of the first one."""
    sound = ModeQueue.answered

    def served(self: ModeQueue, answer: Any, *times: float) -> Effects:  # noqa: ANN401 - as it has it
        effects = sound(self, answer, *times)
        for first in effects.served[:1]:
            while self.waiters:
                waiter = self.waiters.popleft()
                waiter.grant, waiter.sent_at = first.grant, first.sent_at
                effects.served += (waiter,)
        return effects

    patch.setattr(ModeQueue, "answered", served)


def the_cancelled_keep_grants(patch: MonkeyPatch) -> None:
    """A task that is cancelled when its grant has come does not give it back."""
    sound = WaitQueue.leave

    def leaves(self: WaitQueue, waiter: TaskWaiter, mode: Mode) -> None:
        if waiter.grant is None:
            sound(self, waiter, mode)

    patch.setattr(WaitQueue, "leave", leaves)


def waiters_are_not_counted(patch: MonkeyPatch) -> None:
    """``max_waiters`` counts for nothing."""
    sound = LockAcquirer._wait

    async def unlimited(
        self: LockAcquirer, request: AcquireRequest, until: float | None
    ) -> Lease:
        return await sound(self, replace(request, max_waiters=None), until)

    patch.setattr(LockAcquirer, "_wait", unlimited)


def uncertain_requests_stay(patch: MonkeyPatch) -> None:
    """A request whose reply never came is not withdrawn."""
    for module in (store_client, acquirer, conversion):
        patch.setattr(module, "is_uncertain", lambda _: False)


def clean_up_is_not_repeated(patch: MonkeyPatch) -> None:
    """A release or withdrawal that failed is left at that."""
    patch.setattr(CleanupRetrier, "repeat", lambda *_, **__: None)


def a_wait_is_shielded(patch: MonkeyPatch) -> None:
    """A task that waits cannot be cancelled for a while."""
    sound = LockAcquirer._wait

    async def shielded(
        self: LockAcquirer, request: AcquireRequest, until: float | None
    ) -> Lease:
        with anyio.move_on_after(0.3, shield=True):
            return await sound(self, request, until)
        raise LockTimeout(resource=request.resource.label, mode="write", timeout=0.3)

    patch.setattr(LockAcquirer, "_wait", shielded)


def a_cancellation_is_an_error(patch: MonkeyPatch) -> None:
    """A task that is cancelled while it waits gets an error in its place."""
    sound = LockAcquirer._wait

    async def wrong(
        self: LockAcquirer, request: AcquireRequest, until: float | None
    ) -> Lease:
        try:
            return await sound(self, request, until)
        except anyio.get_cancelled_exc_class():
            raise Closed from None

    patch.setattr(LockAcquirer, "_wait", wrong)


def a_timeout_names_nobody(patch: MonkeyPatch) -> None:
    """The error of a timeout does not say who holds the lock."""
    sound = LockAcquirer.timed_out

    def anonymous(
        self: LockAcquirer, request: AcquireRequest, *_: object, **__: object
    ) -> LockTimeout:
        return sound(self, request)

    patch.setattr(LockAcquirer, "timed_out", anonymous)


# ---------------------------------------------------------- what is shown and logged


def tickets_are_shown(patch: MonkeyPatch) -> None:
    """A holder is shown by its ticket."""
    for module in (held, info):
        patch.setattr(module, "holder_of", str)


def reasons_are_hidden(patch: MonkeyPatch) -> None:
    """The reason why a lock is held or waited for is shown to nobody."""
    for maker in ("_holder", "_queued"):
        sound = getattr(info, maker)

        def made(*args: object, sound: Callable[..., Any] = sound) -> object:
            return dataclasses.replace(sound(*args), reason="")

        patch.setattr(info, maker, made)


def foreigners_came_just_now(patch: MonkeyPatch) -> None:
    """The age of a foreign program's record is not known."""
    patch.setattr(info, "_record_time", lambda _, wall: wall)


def the_expired_are_not_stale(patch: MonkeyPatch) -> None:
    """Only a grant without a lease looks abandoned."""
    sound = LockInfo.stale

    def endless(self: LockInfo, older_than: float = 0.0) -> LockInfo | None:
        left = sound(self, older_than)
        ends = left is not None and left.holders[0].expires_in is not None
        return None if ends else left

    patch.setattr(LockInfo, "stale", endless)


def nothing_is_logged(patch: MonkeyPatch) -> None:
    """Neither waits nor forced releases are logged."""
    for module in (client, acquirer, wait_queue):
        patch.setattr(module, "log_event", lambda *_, **__: None)


# --------------------------------------------------------------------- the moves


def a_move_to_the_same_mode_is_none(patch: MonkeyPatch) -> None:
    """A move to the mode in which a grant is held is no error."""
    sound = HeldState.move

    async def lenient(self: HeldState, mode: Mode, mover: Mover) -> HeldState | None:
        return None if self.lease.mode is mode else await sound(self, mode, mover)

    patch.setattr(HeldState, "move", lenient)


# ------------------------------------------------------------------ several at once


def several_come_in_reverse(patch: MonkeyPatch) -> None:
    """Several grants are not returned in the order in which their locks were passed."""
    for name in ("__aenter__", "_get"):
        sound = getattr(Multi, name)

        async def reverse(
            self: Multi, sound: Callable[..., Awaitable[Any]] = sound
        ) -> tuple[Held, ...]:
            held: tuple[Held, ...] = await sound(self)
            return held[::-1]

        patch.setattr(Multi, name, reverse)


def several_may_be_the_same(patch: MonkeyPatch) -> None:
    """A lock may be passed twice to ``multi``."""
    patch.setattr(lock._Lock, "key", property(lambda one: f"{one.resource}{id(one)}"))


def several_are_taken_as_they_come(patch: MonkeyPatch) -> None:
    """Several locks are waited for in the order in which they were passed."""
    patch.setattr(multi, "sorted", lambda locks, **_: list(locks), raising=False)


# --------------------------------------------------------------------- the closing


def the_closed_is_used(patch: MonkeyPatch) -> None:
    """A ``Locks`` may be used after it was closed, and in any event loop."""
    patch.setattr(Session, "check", lambda _: None)


def closing_releases_nothing(patch: MonkeyPatch) -> None:
    """The grants of a ``Locks`` that is closed stay."""
    patch.setattr(Session, "grants", lambda _: [])


def closing_ends_no_wait(patch: MonkeyPatch) -> None:
    """The tasks that wait do not learn of the closing."""
    patch.setattr(LockAcquirer, "close", lambda *_: None)


def closing_begins_with_a_wait(patch: MonkeyPatch) -> None:
    """Nothing is released before the first await, which may be cancelled."""
    sound = Locks.aclose

    async def late(self: Locks) -> None:
        await checkpoint()
        await sound(self)

    patch.setattr(Locks, "aclose", late)


# ------------------------------------------------- what the tests of the client judge


def anything_is_seen(patch: MonkeyPatch) -> None:
    """A forced release of what was not seen does nothing."""
    sound = Locks.force_release

    async def lenient(self: Locks, seen: LockInfo, *, reason: str) -> int:
        given: object = seen
        if not isinstance(given, LockInfo):
            return 0
        return await sound(self, seen, reason=reason)

    patch.setattr(Locks, "force_release", lenient)


def errors_are_losses(patch: MonkeyPatch) -> None:
    """A body that ends by an error has lost its grant."""
    sound = HeldState.exit

    async def lost(self: HeldState, kind: Any, exc: Any, traceback: Any) -> None:  # noqa: ANN401 - as it has them
        await sound(self, kind, exc, traceback)
        if exc is not None:
            raise self.error()

    patch.setattr(HeldState, "exit", lost)


def a_loss_is_for_all(patch: MonkeyPatch) -> None:
    """The loss of one grant cancels the bodies of all."""
    sound = HeldState.on_lost

    def lost(self: HeldState) -> None:
        for one in self.session.grants():
            one._cancel_bodies()
        sound(self)

    patch.setattr(HeldState, "on_lost", lost)


def the_ended_are_upgraded(patch: MonkeyPatch) -> None:
    """An upgrade goes on though the reader's grant has ended."""
    patch.setattr(conversion, "_held", lambda _: True)


def who_left_is_looked_for(patch: MonkeyPatch) -> None:
    """A resource is watched on when its upgrader has stopped waiting."""
    patch.setattr(WaitQueueRegistry, "unlisten", lambda *_: None)


def any_grant_is_used(patch: MonkeyPatch) -> None:
    """A grant may be used that is not held any more."""
    patch.setattr(HeldState, "check", lambda _: None)


def a_lease_ends_twice(patch: MonkeyPatch) -> None:
    """A release never reports that the lease had ended before."""
    sound = Lease.end

    def ended(self: Lease, state: LeaseState) -> bool:
        sound(self, state)
        return True

    patch.setattr(Lease, "end", ended)


def moves_are_not_noted(patch: MonkeyPatch) -> None:
    """A lease does not know that its grant may be moved just now."""
    patch.setattr(Lease, "moving_to", lambda *_: nullcontext())


def the_moved_are_extended(patch: MonkeyPatch) -> None:
    """To extend a grant that has been moved is no error."""
    sound = Held.extend

    async def lenient(self: Held, lease: float | None = None) -> None:
        with suppress(NotOwner):
            await sound(self, lease)

    patch.setattr(Held, "extend", lenient)


def the_lost_are_moved(patch: MonkeyPatch) -> None:
    """A grant that is lost while it is moved is held in the new mode.

    Two rules keep it from that: the loss releases the new ticket as well, and the reply
    to the move counts only if the old lease is still held.
    """
    moves_are_not_noted(patch)
    a_lease_ends_twice(patch)


def several_are_asked_in_turn(patch: MonkeyPatch) -> None:
    """Several locks are asked for one by one from the beginning."""

    async def none(*_: object) -> None:
        await checkpoint()

    patch.setattr(multi, "try_acquire_all", none)


def the_rest_is_kept(patch: MonkeyPatch) -> None:
    """The grants that came beside a refused one are not given back."""
    patch.setattr(StoreClient, "release_in_background", lambda *_: None)


def several_have_no_timeout(patch: MonkeyPatch) -> None:
    """The first round of several requests may take for ever."""
    sound = acquirer.try_acquire_all

    async def patient(*args: Any) -> Any:  # noqa: ANN401 - as it has them
        with anyio.move_on_after(1, shield=True):
            return await sound(*args)
        raise Closed

    patch.setattr(multi, "try_acquire_all", patient)


def uncertainty_is_hidden(patch: MonkeyPatch) -> None:
    """It does not report that a lock may be held."""

    async def certain(*_: object) -> None:
        await checkpoint()

    patch.setattr(StoreClient, "resolve", certain)


def strangers_are_left_out(patch: MonkeyPatch) -> None:
    """Of several locks, those of another store are not asked for."""
    sound = Multi.__init__

    def own(self: Multi, owner: Session, locks: Sequence[Any], *rest: Any) -> None:  # noqa: ANN401 - as it has them
        mine = [one for one in locks if getattr(one, "_session", None) is owner]
        sound(self, owner, mine, *rest)

    patch.setattr(Multi, "__init__", own)


def defects_are_raised(patch: MonkeyPatch) -> None:
    """What a store raises is not handed to the tasks that wait for its reply."""

    def step(
        self: StoreClient, resource: Resource, command: Command, _: object = None
    ) -> object:
        return self.store.step(resource, command)

    patch.setattr(StoreClient, "step", step)


def the_rest_of_a_timeout_is_reported(patch: MonkeyPatch) -> None:
    """The error of several locks tells what was left of the timeout for the last."""

    @contextmanager
    def broken(
        clock: Clock, timeout: float | None
    ) -> Iterator[Callable[[], float | None]]:
        until = None if timeout is None else clock.now() + timeout
        yield lambda: None if until is None else max(0.0, until - clock.now())

    patch.setattr(multi, "one_timeout", broken)
