"""Stores with one fault each, made of the memory store, to show that cases can fail.

A fault changes the commands on their way in, or the replies on their way out, and
leaves everything else as it is. ``Fault()`` changes nothing: with it all cases pass.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import ClassVar
from unicodedata import normalize
from uuid import uuid4

from aiorwlock_remote.backends.memory import MemoryDatabase, MemoryRenewer, MemoryStore
from aiorwlock_remote.cas.stepper import map_granted
from aiorwlock_remote.core.commands import (
    HELD,
    Acquire,
    Adopt,
    Claim,
    Command,
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
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import UNKNOWN_REQUESTER, Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.names import resource as named
from aiorwlock_remote.core.permits import MAX_LIMIT
from aiorwlock_remote.core.ticket import READERS, Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy, micros
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Pending,
    Renewal,
    Snapshot,
    StoreBase,
    StoreSettings,
    WakeCallback,
)

NEVER = PollPolicy(poll_min=1000, poll_max=1000, entry_ttl=3000)


class Fault(MemoryStore):
    """No fault: the memory store, with hooks."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Carry out one step, changed on its way in and out."""
        with self._database.lock:
            record = self._database.records.get(resource)
        grants = () if record is None else record.grants
        changed: Pending[Reply] = Pending()
        done = super().step(resource, self.asked(command, grants))
        done.add_done_callback(
            lambda p: changed.set_result(self.altered(command, p.result()))
        )
        return changed

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        """Return the command as the fault changes it; ``grants``: those recorded."""
        del grants
        return command

    def altered(self, command: Command, reply: Reply) -> Reply:
        """Return the reply as the fault changes it."""
        del command
        return reply


class Broken:
    """A backend of stores with this fault that share their locks."""

    def __init__(self, fault: Callable[..., StoreBase], kept: MemoryDatabase) -> None:
        self._fault = fault
        self._kept = kept

    async def open(
        self, host: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        """Open a store, as ``Backend`` asks."""
        return self._fault(self._kept, host, wake, settings)


class PrefixApart(Fault):
    """Keeps the locks of each prefix apart from all others."""

    _apart: ClassVar[dict[tuple[int, str], MemoryDatabase]] = {}

    def __init__(
        self,
        database: MemoryDatabase,
        host: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        apart = self._apart.setdefault(
            (id(database), settings.prefix), MemoryDatabase()
        )
        super().__init__(apart, host, wake, settings)


class Everybody(Fault):
    """Grants every acquire."""

    def altered(self, command: Command, reply: Reply) -> Reply:
        if isinstance(command, Acquire) and isinstance(reply, Refused):
            claim = command.claims[0]
            grant = Grant(claim.ticket, command.mode, 10**18, 0, None)
            return Granted((grant,), 0)
        return reply


class ReadersFirst(Fault):
    """Lets readers past waiting writers."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire) and command.mode is Mode.READ:
            return replace(command, policy=Policy.READER)
        return command


class Tangled(Fault):
    """Keeps its replies in an object that refers to itself."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        done = super().step(resource, command)
        kept: list[object] = [done]
        kept.append(kept)
        return done


class NewestFirst(Fault):
    """Puts newcomers at the head of the queue."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        records = self._database.records
        before = records.get(resource, Doorman()).queue
        done = super().step(resource, command)
        after = records[resource].queue
        if len(after) > len(before) > 0:
            newest = replace(after[-1], number=after[0].number - 1)
            queue = (newest, *after[:-1])
            records[resource] = replace(records[resource], queue=queue)
        return done


class NoFence(Fault):
    """Gives every grant the same fence."""

    def altered(self, command: Command, reply: Reply) -> Reply:
        del command
        if isinstance(reply, Granted):
            return replace(reply, grants=tuple(_fence(g, 7) for g in reply.grants))
        return reply


class MovesKeepFence(Fault):
    """Keeps the phase's number when a grant is downgraded or upgraded."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._fence = 0

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        if isinstance(command, Downgrade | Upgrade) and grants:
            self._fence = grants[0].fence
        return command

    def altered(self, command: Command, reply: Reply) -> Reply:
        if isinstance(command, Downgrade | Upgrade) and isinstance(reply, Granted):
            grants = tuple(_fence(g, self._fence) for g in reply.grants)
            return replace(reply, grants=grants)
        return reply


class CountsReturns(Fault):
    """Permits that are given out between two returns have one fence."""

    _returned = 1

    def altered(self, command: Command, reply: Reply) -> Reply:
        self._returned += isinstance(command, Release)

        def numbered(granted: Granted) -> Granted:
            grants = tuple(_fence(grant, self._returned) for grant in granted.grants)
            return replace(granted, grants=grants)

        return map_granted(reply, numbered)


class CountsFences(Fault):
    """Counts the phases of a resource from the clock at its first one."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        records = self._database.records
        before = records.get(resource, Doorman())
        done = super().step(resource, command)
        after = records.get(resource, Doorman())
        if not 0 < before.last < after.last:
            return done

        def counted(granted: Granted) -> Granted:
            grants = tuple(_fence(grant, before.last + 1) for grant in granted.grants)
            return replace(granted, grants=grants)

        grants = tuple(_fence(grant, before.last + 1) for grant in after.grants)
        records[resource] = replace(after, last=before.last + 1, grants=grants)
        changed: Pending[Reply] = Pending()
        changed.set_result(map_granted(done.result(), counted))
        return changed


class AdoptersShare(Fault):
    """Gives the same grant to every adopter of its ticket."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Adopt):
            return Renew(((command.ticket, command.claim.lease),))
        return command

    def altered(self, command: Command, reply: Reply) -> Reply:
        if isinstance(command, Adopt) and isinstance(reply, Renewed):
            (outcome,) = reply.outcomes
            return Granted((outcome,), 0) if isinstance(outcome, Grant) else outcome
        return reply


class AdoptersQueue(Fault):
    """Ends the former phase when a grant is adopted, and grants to waiters."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if isinstance(command, Adopt):
            super().step(resource, Release(command.ticket)).log_failure()
            return super().step(resource, Acquire((command.claim,), Mode.WRITE))
        return super().step(resource, command)


class AnyTicket(Fault):
    """Ignores the ticket on release."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        if isinstance(command, Release) and grants:
            return replace(command, ticket=grants[0].ticket)
        return command


class AnyHolder(Fault):
    """Breaks the present holder, not the one that was seen."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        if isinstance(command, ForceRelease) and grants:
            return ForceRelease(grants[0].holder, grants[0].fence)
        return command


class NeverExpires(Fault):
    """Forgets the lease."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            claims = tuple(_for_ever(claim) for claim in command.claims)
            return replace(command, claims=claims)
        return command


class ExpiresLate(Fault):
    """Ends a grant some seconds after its lease."""

    late = micros(3.0)

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            claims = tuple(self._longer(claim) for claim in command.claims)
            return replace(command, claims=claims)
        return command

    def _longer(self, claim: Claim) -> Claim:
        lease = claim.lease
        return claim if lease is None else replace(claim, lease=lease + self.late)


class RenewsAll(Fault):
    """Renews the grants of all readers when one of them is renewed."""

    def renewer(self) -> MemoryRenewer:
        return _RenewingAll(self._database, self.event_loop.clock)


class _RenewingAll(MemoryRenewer):
    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        for item in batch:
            doorman = self._database.records.get(item.resource, Doorman())
            every = tuple((grant.ticket, item.lease) for grant in doorman.grants)
            self._database.step(item.resource, Renew(every), self._clock)
        return super().renew(batch, timeout)


class OneLease(Fault):
    """Ends the grants of all readers with the shortest of their leases."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        done = super().step(resource, command)
        doorman = self._database.records[resource]
        ends = [grant.expires for grant in doorman.grants if grant.expires is not None]
        if isinstance(command, Acquire) and command.mode is Mode.READ and ends:
            grants = tuple(replace(g, expires=min(ends)) for g in doorman.grants)
            self._database.records[resource] = replace(doorman, grants=grants)
        return done


class ForgetsPlaces(Fault):
    """Drops each queue entry after its first life, though its client asks again."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        records = self._database.records
        before = {
            entry.number: entry.expires
            for entry in records.get(resource, Doorman()).queue
        }
        done = super().step(resource, command)
        after = records[resource]
        queue = tuple(
            replace(entry, expires=before.get(entry.number, entry.expires))
            for entry in after.queue
        )
        records[resource] = replace(after, queue=queue)
        return done


class QueuesTries(Fault):
    """Puts who tries once into the queue."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire) and not command.may_queue:
            client_id = command.client_id or uuid4().hex
            return replace(command, may_queue=True, client_id=client_id)
        return command


class MovesTheLost(Fault):
    """Grants what a lost grant is to be moved to."""

    def altered(self, command: Command, reply: Reply) -> Reply:
        if isinstance(command, Downgrade | Upgrade) and isinstance(reply, NotHeld):
            mode = Mode.READ if isinstance(command, Downgrade) else Mode.WRITE
            return Granted((Grant(command.claim.ticket, mode, 10**18, 0, None),), 0)
        return reply


class RenewsTheLost(Fault):
    """Takes a grant that it does not know for renewed."""

    def altered(self, command: Command, reply: Reply) -> Reply:
        if not isinstance(command, Renew) or not isinstance(reply, Renewed):
            return reply
        outcomes = tuple(
            Grant(ticket, Mode.WRITE, 7, 0, None) if isinstance(one, NotHeld) else one
            for (ticket, _), one in zip(command.tickets, reply.outcomes, strict=True)
        )
        return replace(reply, outcomes=outcomes)


class TrimsNames(Fault):
    """Takes names for equal that differ in white space around them."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        kind, name = resource.shown
        return super().step(named(kind.strip(), name.strip()), command)


class NoRenewal(Fault):
    """Reports a renewal that it did not do."""

    def renewer(self) -> MemoryRenewer:
        return _Idle(self._database, self.event_loop.clock)


class _Idle(MemoryRenewer):
    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        del timeout
        return [Grant(item.ticket, Mode.WRITE, 0, 0, None) for item in batch]


class Deaf(Fault):
    """Wakes no waiter: there is only the poll."""

    def __init__(
        self,
        kept: MemoryDatabase,
        host: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        del wake
        super().__init__(kept, host, lambda *_: None, settings)


class DeafAndBlind(Deaf):
    """Wakes no waiter, and no waiter polls."""

    poll_policy = NEVER


class KeepsPlaces(Fault):
    """Forgets that a waiter has left, and what it was granted."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if not isinstance(command, Withdraw):
            return super().step(resource, command)
        dropped: Pending[Reply] = Pending()
        dropped.set_result(Withdrawn())
        return dropped


class KeepsGrants(Fault):
    """Replies to a release, and the grant stays."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if not isinstance(command, Release):
            return super().step(resource, command)
        answered: Pending[Reply] = Pending()
        answered.set_result(Released(held=True))
        return answered


class ForgetsConfirmations(NoRenewal):
    """Replies to the confirmation of a pushed grant, which ends all the same."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        confirms = isinstance(command, Acquire) and command.confirms
        if not confirms:
            return super().step(resource, command)
        answered: Pending[Reply] = Pending()
        grants = self._database.records[resource].grants
        answered.set_result(Granted(grants, micros(self.event_loop.clock.now())))
        return answered


class OldTicketOnly(Fault):
    """Refuses a repeated acquire of a ticket that holds."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        held = {grant.ticket for grant in grants}
        if isinstance(command, Acquire) and command.claims[0].ticket in held:
            other = replace(command.claims[0], ticket=uuid4().hex)
            return replace(command, claims=(other,))
        return command


class TakesSeats(Fault):
    """Takes a foreign program's mutex record for no record."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        with self._database.lock:
            record = self._database.records.get(resource)
            seat = self._database.seats.get(resource)
            if seat is not None and (record is None or record.seat != seat.value):
                del self._database.seats[resource]
        return super().step(resource, command)


class LeavesItsSeat(Fault):
    """Leaves its ticket in a mutex record without doorman, except for a release.

    The answer comes from another, empty store. To put back what a step has removed
    would not do: the waiters are woken by the step, and one may enter in between.
    """

    def __init__(
        self,
        database: MemoryDatabase,
        host: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        super().__init__(database, host, wake, settings)
        self._empty = Fault(MemoryDatabase(), host, wake, settings)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        with self._database.lock:
            record = self._database.records.get(resource, Doorman())
            left = record.seat is None and resource in self._database.seats
        if left and isinstance(command, Renew | Downgrade | Adopt):
            return self._empty.step(resource, command)
        return super().step(resource, command)

    def renewer(self) -> MemoryRenewer:
        return _Leaving(self)


class _Leaving(MemoryRenewer):
    def __init__(self, store: LeavesItsSeat) -> None:
        self._store = store

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        del timeout
        outcomes: list[Grant | NotHeld] = []
        for item in batch:
            command = Renew(((item.ticket, item.lease),))
            reply = self._store.step(item.resource, command).result()
            assert isinstance(reply, Renewed)
            outcomes += reply.outcomes
        return outcomes


class TakesReaders(Fault):
    """Removes any ``readers`` from the record when a reader learns that it is out."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        done = super().step(resource, command)
        seat = self._database.seats.get(resource)
        if isinstance(command, Renew) and seat is not None and seat.ticket == READERS:
            del self._database.seats[resource]
        return done


class NoSeat(Fault):
    """Leaves the published mutex record empty."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        with self._database.lock:
            record = self._database.records.get(resource)
            if record is not None and record.seat is not None:
                self._database.seats[resource] = MutexRecord(record.seat, record.ends)
        done = super().step(resource, command)
        with self._database.lock:
            self._database.seats.pop(resource, None)
        return done


def _fence(grant: Grant, fence: int) -> Grant:
    return replace(grant, fence=fence)


def _for_ever(claim: Claim) -> Claim:
    return replace(claim, lease=None)


class NoLimit(Fault):
    """Takes each limit of a semaphore for the greatest that it may have."""

    limit = MAX_LIMIT

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        match command:
            case Acquire() if command.mode is Mode.PERMIT:
                return replace(command, limit=self.limit)
            case Release():
                then = [self.asked(ask, ()) for ask in command.then]
                acquires = tuple(ask for ask in then if isinstance(ask, Acquire))
                return replace(command, then=acquires)
            case _:
                return command


class KeepsPermits(Fault):
    """Takes ``permits`` without a doorman for another program's record."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        with self._database.lock:
            record = self._database.records.get(resource, Doorman())
            seat = self._database.seats.get(resource)
        lost = seat is not None and seat.value != record.seat
        if not lost or not isinstance(command, Acquire):
            return super().step(resource, command)
        refused: Pending[Reply] = Pending()
        refused.set_result(Refused(HELD))
        return refused


class OneLimit(NoLimit):
    """Takes each limit of a semaphore for 3, whatever its clients say."""

    limit = 3


class OnePermit(Fault):
    """Grants one permit to a request, however many tasks ask."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire) and command.mode is Mode.PERMIT:
            first, *rest = command.claims
            return replace(command, claims=(first,), more=command.more + len(rest))
        return command


class ServedFirst(Fault):
    """Leaves the tasks that got no permit at the head of the queue."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        done = super().step(resource, command)
        after = self._database.records[resource].queue
        served = isinstance(done.result(), Granted) and len(after) > 1
        if isinstance(command, Acquire) and served:
            number = after[0].number - 1
            first = replace(after[-1], number=number, claim_until=None)
            record = replace(
                self._database.records[resource], queue=(first, *after[:-1])
            )
            self._database.records[resource] = record
        return done


class SharedName(Fault):
    """Keeps a semaphore and a lock of one name in one place."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if resource.is_semaphore and isinstance(command, Acquire):
            kind, name = resource.shown
            changed = replace(command, mode=Mode.WRITE, limit=0)
            return super().step(Resource(kind, name), changed)
        return super().step(resource, command)


class Undeclared(Fault):
    """Declares no capability."""

    capabilities = Capability.NONE


class PollsOften(Fault):
    """Has its waiters poll ten times a second, though it notifies them."""

    poll_policy = PollPolicy(poll_min=0.1, poll_max=0.1)


class Apart(Fault):
    """Opens a database of its own at each connection."""

    def __init__(
        self,
        database: MemoryDatabase,
        host: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        del database
        super().__init__(MemoryDatabase(), host, wake, settings)


class ReadersAlone(Fault):
    """Takes each reader for a writer."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire) and command.mode is Mode.READ:
            return replace(command, mode=Mode.WRITE)
        return command


class Renames(Fault):
    """Base of the faults that keep a resource under another name than asked for."""

    def renamed(self, text: str) -> str:
        """Return the name that the fault takes for ``text``."""
        return text

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        kind, name = resource.shown
        return super().step(named(self.renamed(kind), self.renamed(name)), command)


class FoldsCase(Renames):
    """Takes names for equal that differ in case."""

    def renamed(self, text: str) -> str:
        return text.casefold()


class ComposesLetters(Renames):
    """Keeps a name with composed letters, whichever letters were asked for."""

    def renamed(self, text: str) -> str:
        return normalize("NFC", text)


class CutsNames(Renames):
    """Keeps 200 characters of a name."""

    def renamed(self, text: str) -> str:
        return text[:200]


class ListsAllTypes(Fault):
    """Lists the resources of all types, whichever type was asked for."""

    def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        del resource_type
        return super().scan(None)


class LeavesScansOpen(Fault):
    """Does not close the scan that it passes on, if its own is left early."""

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        async for snapshot in super().scan(resource_type):
            yield snapshot


class HidesForeigners(Fault):
    """Lists only the resources that clients of this library have asked for."""

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        async with aclosing(super().scan(resource_type)) as found:
            async for snapshot in found:
                if snapshot.resource in self._database.records:
                    yield snapshot


class LooksTake(Fault):
    """Takes the resource for reading when it is looked at."""

    async def look(self, resource: Resource) -> Snapshot:
        self.step(resource, Acquire((Claim(uuid4().hex, None),), Mode.READ)).result()
        return await super().look(resource)


class EachReaderItsFence(Fault):
    """Gives each reader a fence of its own."""

    _fences = count(2**60)

    def altered(self, command: Command, reply: Reply) -> Reply:
        if isinstance(command, Acquire) and isinstance(reply, Granted):
            grants = tuple(_fence(grant, next(self._fences)) for grant in reply.grants)
            return replace(reply, grants=grants)
        return reply


class EndlessEnds(Fault):
    """Gives a lease to a grant that was asked for without one."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            claims = tuple(
                replace(claim, lease=1) if claim.lease is None else claim
                for claim in command.claims
            )
            return replace(command, claims=claims)
        return command


class NoDelay(Fault):
    """Opens a resource as soon as a lease has ended, whatever its ``lock_delay``."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            claims = tuple(replace(claim, lock_delay=0) for claim in command.claims)
            return replace(command, claims=claims)
        return command


class AlwaysFair(Fault):
    """Knows one policy."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            return replace(command, policy=Policy.FAIR)
        return command


class QueuesNobody(Fault):
    """Puts nobody into the queue."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            return replace(command, may_queue=False, client_id="")
        return command


class ForcesAll(Fault):
    """Ends the grants of all holders when one is to be ended."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        done = super().step(resource, command)
        forced = done.result()
        if isinstance(forced, Forced) and forced.done:
            for grant in self._database.records[resource].grants:
                force = ForceRelease(grant.holder, grant.fence)
                super().step(resource, force).log_failure()
        return done


class BreaksAnySeat(Fault):
    """Ends the record of a foreign program, though it is not the one that was seen."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        seat = self._database.seats.get(resource)
        if isinstance(command, ForceRelease) and command.seat is not None and seat:
            command = replace(command, seat=seat.value)
        return super().step(resource, command)


class ForeignersStay(Fault):
    """Releases no ticket but those of its own grants."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        record = self._database.records.get(resource, Doorman())
        if isinstance(command, Release) and not record.grants:
            refused: Pending[Reply] = Pending()
            refused.set_result(Released(held=False))
            return refused
        return super().step(resource, command)


class RestoresSeats(Fault):
    """Writes the mutex record of a grant anew, whatever another program did to it."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        _restore(self._database, resource)
        return super().step(resource, command)

    def renewer(self) -> MemoryRenewer:
        return _Restoring(self._database, self.event_loop.clock)


class _Restoring(MemoryRenewer):
    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        for item in batch:
            _restore(self._database, item.resource)
        return super().renew(batch, timeout)


def _restore(database: MemoryDatabase, resource: Resource) -> None:
    with database.lock:
        record = database.records.get(resource, Doorman())
        if record.seat is not None:
            database.seats[resource] = MutexRecord(record.seat, record.ends)


class EveryUpgradeWaits(Fault):
    """Notes each refused upgrade as one that waits, though its reader only tries."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Upgrade):
            return replace(command, may_wait=True)
        return command


class UpgradesBeside(Fault):
    """Upgrades a reader though there are others."""

    def altered(self, command: Command, reply: Reply) -> Reply:
        refused = not isinstance(reply, Granted | NotHeld)
        if isinstance(command, Upgrade) and refused:
            return Granted((command.claim.grant(Mode.WRITE, 10**18, 0),), 0)
        return reply


class AdoptsTheLost(Fault):
    """Grants what is adopted, though it is gone."""

    def altered(self, command: Command, reply: Reply) -> Reply:
        if isinstance(command, Adopt) and isinstance(reply, NotHeld):
            return Granted((command.claim.grant(Mode.WRITE, 10**18, 0),), 0)
        return reply


class MovesForgetReasons(Fault):
    """Forgets why a lock is held when its grant is moved."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Downgrade | Upgrade | Adopt):
            return replace(command, claim=replace(command.claim, who=UNKNOWN_REQUESTER))
        return command


class CountsNoWaiters(Fault):
    """Queues as many waiters as ask."""

    def asked(self, command: Command, grants: tuple[Grant, ...]) -> Command:
        del grants
        if isinstance(command, Acquire):
            return replace(command, max_waiters=None)
        return command


class KeepsTheDead(Fault):
    """Leaves the head of the queue to a process that does not come."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        done = super().step(resource, command)
        record = self._database.records[resource]
        queue = tuple(
            replace(entry, expires=10**18, claim_until=entry.claim_until and 10**18)
            for entry in record.queue
        )
        self._database.records[resource] = replace(record, queue=queue)
        return done


class ModesApart(Fault):
    """Keeps readers and writers of one name in two places."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if isinstance(command, Acquire) and command.mode is Mode.READ:
            kind, name = resource.shown
            return super().step(named(kind, f"{name}, read"), command)
        return super().step(resource, command)
