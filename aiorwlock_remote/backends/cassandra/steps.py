"""Steps on the table: swaps, and what rows that vanish ask for beside them.

A request that was lost may be carried out much later if the row is absent again. So no
grant is made from nothing without an end: one that is to last for ever gets a short
lease first, and is renewed to last once its answer is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.backends.cassandra.holders import Holders
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Command,
    Downgrade,
    Granted,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doubt import after_doubt
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.swapping import State, Swapping
from aiorwlock_remote.swapping.pausing import Later, Pausing
from aiorwlock_remote.swapping.replies import each_grant

SHORT = micros(10)
"""The lease of a grant that is about to be made to last for ever."""


class Steps:
    """``Store.step`` on the table. Belongs to one thread."""

    def __init__(
        self,
        cas: CassandraCas,
        holders: Holders,
        wakes: Callable[[Resource, tuple[str, ...]], object],
        later: Later,
    ) -> None:
        """``later(seconds, function)``: called then, in this thread."""
        self._cas = cas
        self._holders = holders
        self._swapping = Swapping(cas, wakes, Pausing(cas.peek, later))

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """As ``Store.step``."""
        answer: Pending[Reply] = Pending()
        wanted, command = _bounded(command)
        if isinstance(command, Acquire) and not command.fenced:
            tickets = {claim.ticket for claim in command.claims}
            self._cas.unfenced |= tickets
            answer.then(lambda _: self._cas.unfenced.difference_update(tickets))
        answered = partial(self._answered, resource, command, wanted, answer)
        self._swapping.step(resource, command).then(
            partial(answered, self._cas.clock())
        )
        return answer

    def saw(self, resource: Resource, state: State) -> None:
        """Somebody else's read: the next step may start from there."""
        self._swapping.saw(resource, state)

    def known(self, resource: Resource) -> State | None:
        """What was seen last; from any thread."""
        return self._swapping.known(resource)

    def _answered(
        self,
        resource: Resource,
        command: Command,
        wanted: frozenset[str],
        answer: Pending[Reply],
        sent: int,
        stepped: Pending[Reply],
    ) -> None:
        if stepped.error is not None:
            answer.fail(stepped.error)
            return
        reply = self._noted(command, stepped.result(), sent)
        if not wanted:
            answer.resolve(reply)
            return
        ending = tuple(
            (grant.ticket, None)
            for grant in _grants(reply)
            if grant.ticket in wanted and grant.expires is not None
        )
        if not ending:
            answer.resolve(reply)
            return
        lasting = self._swapping.step(resource, Renew(ending))
        lasting.then(partial(self._lasting, reply, answer))

    def _noted(self, command: Command, reply: Reply, sent: int) -> Reply:
        if isinstance(command, Withdraw):
            self._holders.gone(command.tickets)
        about = _about(command)
        reply = self._holders.corrected(reply, about, self._cas.clock())
        if isinstance(reply, Released) and reply.held:
            self._holders.gone(about)
        if isinstance(reply, Renewed) and isinstance(command, Renew):
            for outcome, (_, lease) in zip(
                reply.outcomes, command.tickets, strict=True
            ):
                if isinstance(outcome, Grant):
                    # What is left of it is at least what was asked for.
                    until = None if outcome.expires is None else lease
                    self._holders.granted((replace(outcome, expires=until),), 0, sent)
        each_grant(reply, partial(self._granted, sent))
        return reply

    def _granted(self, sent: int, granted: Granted) -> Granted:
        self._holders.granted(granted.grants, granted.now, sent)
        return granted

    def _lasting(
        self, reply: Reply, answer: Pending[Reply], renewed: Pending[Reply]
    ) -> None:
        if renewed.error is not None:
            answer.fail(after_doubt(renewed.error))  # it was granted before
            return
        told = renewed.result()
        assert isinstance(told, Renewed)
        now = {o.ticket: o for o in told.outcomes if isinstance(o, Grant)}
        if len(now) < len(told.outcomes):
            answer.fail(BackendUnavailable(what="a grant was broken at once"))
            return

        def lasting(granted: Granted) -> Granted:
            grants = tuple(now.get(g.ticket, g) for g in granted.grants)
            self._holders.granted(tuple(now.values()), 0, 0)
            return replace(granted, grants=grants)

        answer.resolve(each_grant(reply, lasting))


def _bounded(command: Command) -> tuple[frozenset[str], Command]:
    """The tickets that want no end, and the command with a short lease for them."""
    match command:
        case Acquire() if any(claim.lease is None for claim in command.claims):
            wanted = [c.ticket for c in command.claims if c.lease is None]
            claims = tuple(
                replace(claim, lease=SHORT) if claim.lease is None else claim
                for claim in command.claims
            )
            return frozenset(wanted), replace(command, claims=claims)
        case Release() if command.then:
            bounded = [_bounded(acquire) for acquire in command.then]
            then = tuple(c for _, c in bounded if isinstance(c, Acquire))
            tickets = {ticket for wanted, _ in bounded for ticket in wanted}
            return frozenset(tickets), replace(command, then=then)
        case _:
            return frozenset(), command


def _grants(reply: Reply) -> list[Grant]:
    found: list[Grant] = []

    def note(granted: Granted) -> Granted:
        found.extend(granted.grants)
        return granted

    each_grant(reply, note)
    return found


def _about(command: Command) -> tuple[str, ...]:
    """The tickets that the reply's reasons are about."""
    match command:
        case Release() | Downgrade() | Upgrade() | Adopt():
            return (command.ticket,)
        case Renew():
            return tuple(ticket for ticket, _ in command.tickets)
        case _:
            return ()
