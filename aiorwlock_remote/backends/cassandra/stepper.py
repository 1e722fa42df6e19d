"""Steps on the table: endless grants are made in two steps, and losses explained.

A request without an answer may be carried out much later, if the row is absent at that
time. A grant that never expires must not come to be in that way. So in a new row such a
grant gets a short lease first; once the grant is confirmed, a renewal makes it endless
(test_a_lock_for_ever_is_made_from_a_short_one).

The note why a grant ended is deleted with its row, so this process remembers its grants
and their earliest expiry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.port import CasStore
from aiorwlock_remote.cas.stepper import CasStepper, CommandQueue, map_granted
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Granted,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Withdraw,
    map_claims,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import without_proof
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, LossReason

MAX_GRANTS_CACHED = 1024

# The lease, in microseconds, of a grant that is about to be renewed to last for ever.
PROVISIONAL_LEASE = micros(10)


class LocalGrants:
    """Thread-safe memory of this process's grants, with their earliest expiry.

    A grant that is lost before its earliest expiry was ended by another client.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: dict[str, float] = {}
        self._capacity = MAX_GRANTS_CACHED

    def granted(self, grants: Sequence[Grant], now: int, sent: int) -> None:
        """Remember grants of one reply.

        ``now`` is the row's own time when they were granted, ``sent`` the local
        monotonic clock when the request was sent; both in microseconds.
        """
        with self._lock:
            for grant in grants:
                left = math.inf if grant.expires is None else grant.expires - now
                self._ends[grant.ticket] = sent + left
            # The limit grows with the grants that live, or each new one would cost a
            # search for dead ones.
            if len(self._ends) > self._capacity:
                alive = {t: e for t, e in self._ends.items() if e > sent}
                self._ends = alive
                self._capacity = max(MAX_GRANTS_CACHED, 2 * len(alive))

    def loss_reason(self, ticket: str, stored: LossReason, clock: int) -> LossReason:
        """Return why a grant was lost, and forget the grant.

        ``stored`` is the reason that the store gave. If that is "expired", but the
        grant cannot have expired yet at ``clock`` (local monotonic clock,
        microseconds), the result is "forced" (another client ended the grant), else
        ``stored``.
        """
        with self._lock:
            ends = self._ends.pop(ticket, 0.0)
        return "forced" if stored == "expired" and clock < ends else stored

    def released(self, tickets: Sequence[str]) -> None:
        with self._lock:
            for ticket in tickets:
                self._ends.pop(ticket, None)

    def corrected(self, reply: Reply, tickets: Sequence[str], clock: int) -> Reply:
        match reply:
            case Released(held=False, reason=reason):
                true_reason = self.loss_reason(tickets[0], reason, clock)
                return replace(reply, reason=true_reason)
            case NotHeld(reason):
                return NotHeld(self.loss_reason(tickets[0], reason, clock))
            case Renewed(outcomes):
                true = tuple(
                    NotHeld(self.loss_reason(ticket, outcome.reason, clock))
                    if isinstance(outcome, NotHeld)
                    else outcome
                    for ticket, outcome in zip(tickets, outcomes, strict=True)
                )
                return Renewed(true)
            case _:
                return reply


class CassandraStepper(CasStepper):
    """``CasStepper`` over the lock table of Cassandra, for one thread.

    Makes a grant without an end in two steps, and finds out why a grant was lost.
    """

    def __init__(
        self,
        cas: CasStore,
        local_grants: LocalGrants,
        wakes: Callable[[Resource, tuple[str, ...]], object],
        later: Later,
    ) -> None:
        super().__init__(cas, wakes, CasBackoff(cas.peek, later))
        self._local_grants = local_grants

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        endless, command = _with_bounded_leases(command)
        answer = super().step(resource, command)
        if endless:
            answer = self._made_endless(resource, endless, answer)
        return answer

    async def answered(self, resource: Resource) -> None:
        await super().answered(resource)
        # Again: an answer may just have sent the renewal of a grant without an end.
        await super().answered(resource)

    def _adjust(self, command: Command, reply: Reply, queue: CommandQueue) -> Reply:
        if isinstance(reply, Granted):
            self._local_grants.granted(reply.grants, reply.now, queue.sent)
            return reply
        if isinstance(command, Withdraw):
            self._local_grants.released(command.tickets)
        if isinstance(reply, Released):
            for answer in reply.then:
                if isinstance(answer, Granted):
                    self._local_grants.granted(answer.grants, answer.now, queue.sent)
            # A grant that is released by this process cannot be lost any more.
            if reply.held:
                self._local_grants.released(_tickets_of(command))
                return reply
        if isinstance(reply, Renewed) and isinstance(command, Renew):
            self._renewed(command, reply, queue.sent)
        clock = self._cas.clock()
        return self._local_grants.corrected(reply, _tickets_of(command), clock)

    def _renewed(self, command: Renew, reply: Renewed, sent: int) -> None:
        for outcome, (_, lease) in zip(reply.outcomes, command.tickets, strict=True):
            if isinstance(outcome, Grant):
                # What is left of it is at least what was asked for.
                until = None if outcome.expires is None else lease
                self._local_grants.granted((replace(outcome, expires=until),), 0, sent)

    def _made_endless(
        self, resource: Resource, endless: frozenset[str], stepped: Pending[Reply]
    ) -> Pending[Reply]:
        # Renews those of the tickets that were granted, then answers.
        answer: Pending[Reply] = Pending()

        def granted(_: Pending[Reply]) -> None:
            if stepped.error is not None:
                answer.set_exception(stepped.error)
                return
            reply = stepped.result()
            bounded = tuple(
                (grant.ticket, None)
                for grant in _grants_in(reply)
                if grant.ticket in endless and grant.expires is not None
            )
            if not bounded:
                answer.set_result(reply)
                return
            renewed = CasStepper.step(self, resource, Renew(bounded))
            renewed.add_done_callback(partial(_settle_endless, reply, answer))

        stepped.add_done_callback(granted)
        return answer


def _settle_endless(
    reply: Reply, answer: Pending[Reply], renewed: Pending[Reply]
) -> None:
    if renewed.error is not None:
        answer.set_exception(without_proof(renewed.error))  # the grant was made before
        return
    outcomes = renewed.result()
    assert isinstance(outcomes, Renewed)
    now = {o.ticket: o for o in outcomes.outcomes if isinstance(o, Grant)}
    if len(now) < len(outcomes.outcomes):
        answer.set_exception(
            BackendUnavailable(
                what="the grant was broken before it was renewed to last for ever",
                hint="try again",
            )
        )
        return

    def endless(granted: Granted) -> Granted:
        grants = tuple(now.get(g.ticket, g) for g in granted.grants)
        return replace(granted, grants=grants)

    answer.set_result(map_granted(reply, endless))


def _with_bounded_leases(command: Command) -> tuple[frozenset[str], Command]:
    # The tickets without an end, and the command with short leases for these tickets.
    endless: set[str] = set()

    def bounded(claim: Claim) -> Claim:
        if claim.lease is not None:
            return claim
        endless.add(claim.ticket)
        return replace(claim, lease=PROVISIONAL_LEASE)

    # The other commands move a grant of a row that exists.
    if isinstance(command, Acquire | Release):
        command = map_claims(command, bounded)
    return frozenset(endless), command


def _grants_in(reply: Reply) -> list[Grant]:
    found: list[Grant] = []

    def note(granted: Granted) -> Granted:
        found.extend(granted.grants)
        return granted

    map_granted(reply, note)
    return found


def _tickets_of(command: Command) -> tuple[str, ...]:
    # The tickets that the reasons in a reply are about.
    match command:
        case Release() | Downgrade() | Upgrade() | Adopt():
            return (command.ticket,)
        case Renew():
            return tuple(ticket for ticket, _ in command.tickets)
        case _:
            return ()
