"""Steps on the table: swaps, and what rows that vanish ask for beside them.

A request that was lost may be carried out much later if the row is absent again. So no
grant is made from nothing without an end: one that is to last for ever gets a short
lease first, and is renewed to last once its answer is there.

What this process was granted: a row that vanished cannot tell why it did.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.cas import CasStepper
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.stepper import CommandQueue, map_granted
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
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
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import without_proof
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, LossReason

MAX_GRANTS_CACHED = 1024


class LocalGrants:
    """Our own grants and when the first of them may run out, by local clock.

    A grant that is gone before that time did not expire: somebody deleted its row, and
    the note why went with it. For all threads of a process.
    """

    def __init__(self) -> None:
        """Nobody yet."""
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}
        self._many = MAX_GRANTS_CACHED

    def granted(self, grants: Sequence[Grant], now: int, sent: int) -> None:
        """They were granted by a request sent at ``sent``, ``now`` of the row's time.

        All in microseconds.
        """
        with self._lock:
            for grant in grants:
                left = math.inf if grant.expires is None else grant.expires - now
                self._ends[grant.ticket] = sent + left
            if len(self._ends) > self._many:
                alive = {t: e for t, e in self._ends.items() if e > sent}
                self._ends, self._many = alive, max(MAX_GRANTS_CACHED, 2 * len(alive))

    def why(self, ticket: str, told: LossReason, clock: int) -> LossReason:
        """Why it is gone, if the row says so."""
        with self._lock:
            ends = self._ends.pop(ticket, 0.0)
        return "forced" if told == "expired" and clock < ends else told

    def gone(self, tickets: Sequence[str]) -> None:
        """Given back by ourselves."""
        with self._lock:
            for ticket in tickets:
                self._ends.pop(ticket, None)

    def corrected(self, reply: Reply, tickets: Sequence[str], clock: int) -> Reply:
        """The reply about these tickets, in order, with the true reasons."""
        match reply:
            case Released(held=False, reason=reason):
                return replace(reply, reason=self.why(tickets[0], reason, clock))
            case NotHeld(reason):
                return NotHeld(self.why(tickets[0], reason, clock))
            case Renewed(outcomes):
                true = tuple(
                    NotHeld(self.why(ticket, outcome.reason, clock))
                    if isinstance(outcome, NotHeld)
                    else outcome
                    for ticket, outcome in zip(tickets, outcomes, strict=True)
                )
                return Renewed(true)
            case _:
                return reply


PROVISIONAL_LEASE = micros(10)
"""The lease of a grant that is about to be made to last for ever."""


class CassandraStepper(CasStepper):
    """``Store.step`` on the table. Belongs to one thread."""

    def __init__(
        self,
        cas: CassandraCas,
        holders: LocalGrants,
        wakes: Callable[[Resource, tuple[str, ...]], object],
        later: Later,
    ) -> None:
        """``later(seconds, function)``: called then, in this thread."""
        super().__init__(cas, wakes, CasBackoff(cas.peek, later), self._noted)
        self._holders = holders

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """As ``Store.step``."""
        wanted, command = _with_bounded_leases(command)
        answer = super().step(resource, command)
        if wanted:
            answer = self._endless(resource, wanted, answer)
        return answer

    async def answered(self, resource: Resource) -> None:
        """And for the renewals that make what was granted then last for ever."""
        await super().answered(resource)
        await super().answered(resource)  # each was asked for as its grant was told

    def _noted(self, command: Command, reply: Reply, line: CommandQueue) -> Reply:
        """What it says of our grants is remembered, and corrected by what was."""
        if isinstance(reply, Granted):
            self._holders.granted(reply.grants, reply.now, line.sent)
            return reply
        if isinstance(command, Withdraw):
            self._holders.gone(command.tickets)
        if isinstance(reply, Released):
            for answer in reply.then:
                if isinstance(answer, Granted):
                    self._holders.granted(answer.grants, answer.now, line.sent)
            if reply.held:
                self._holders.gone(_tickets_of(command))
                return reply
        if isinstance(reply, Renewed) and isinstance(command, Renew):
            self._renewed(command, reply, line.sent)
        return self._holders.corrected(reply, _tickets_of(command), self._cas.clock())

    def _renewed(self, command: Renew, reply: Renewed, sent: int) -> None:
        for outcome, (_, lease) in zip(reply.outcomes, command.tickets, strict=True):
            if isinstance(outcome, Grant):
                # What is left of it is at least what was asked for.
                until = None if outcome.expires is None else lease
                self._holders.granted((replace(outcome, expires=until),), 0, sent)

    def _endless(
        self, resource: Resource, wanted: frozenset[str], stepped: Pending[Reply]
    ) -> Pending[Reply]:
        """Those of the tickets that were granted, renewed to last for ever."""
        answer: Pending[Reply] = Pending()

        def granted(_: Pending[Reply]) -> None:
            if stepped.error is not None:
                answer.set_exception(stepped.error)
                return
            reply = stepped.result()
            ending = tuple(
                (grant.ticket, None)
                for grant in _grants_in(reply)
                if grant.ticket in wanted and grant.expires is not None
            )
            if not ending:
                answer.set_result(reply)
                return
            lasting = CasStepper.step(self, resource, Renew(ending))
            lasting.add_done_callback(partial(_settle_lasting, reply, answer))

        stepped.add_done_callback(granted)
        return answer


def _settle_lasting(
    reply: Reply, answer: Pending[Reply], renewed: Pending[Reply]
) -> None:
    if renewed.error is not None:
        answer.set_exception(without_proof(renewed.error))  # it was granted before
        return
    told = renewed.result()
    assert isinstance(told, Renewed)
    now = {o.ticket: o for o in told.outcomes if isinstance(o, Grant)}
    if len(now) < len(told.outcomes):
        answer.set_exception(BackendUnavailable(what="a grant was broken at once"))
        return

    def lasting(granted: Granted) -> Granted:
        grants = tuple(now.get(g.ticket, g) for g in granted.grants)
        return replace(granted, grants=grants)

    answer.set_result(map_granted(reply, lasting))


def _with_bounded_leases(command: Command) -> tuple[frozenset[str], Command]:
    """The tickets that want no end, and the command with a short lease for them."""
    match command:
        case Acquire():
            wanted = [c.ticket for c in command.claims if c.lease is None]
            if not wanted:
                return frozenset(), command
            claims = tuple(
                replace(claim, lease=PROVISIONAL_LEASE)
                if claim.lease is None
                else claim
                for claim in command.claims
            )
            return frozenset(wanted), replace(command, claims=claims)
        case Release() if command.then:
            bounded = [_with_bounded_leases(acquire) for acquire in command.then]
            then = tuple(c for _, c in bounded if isinstance(c, Acquire))
            tickets = {ticket for wanted, _ in bounded for ticket in wanted}
            return frozenset(tickets), replace(command, then=then)
        case _:
            return frozenset(), command


def _grants_in(reply: Reply) -> list[Grant]:
    found: list[Grant] = []

    def note(granted: Granted) -> Granted:
        found.extend(granted.grants)
        return granted

    map_granted(reply, note)
    return found


def _tickets_of(command: Command) -> tuple[str, ...]:
    """The tickets that the reply's reasons are about."""
    match command:
        case Release() | Downgrade() | Upgrade() | Adopt():
            return (command.ticket,)
        case Renew():
            return tuple(ticket for ticket, _ in command.tickets)
        case _:
            return ()
