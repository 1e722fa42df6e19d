"""From a recorded history to one of the model ``LockRec``, for ``spec/TraceRec.tla``.

What a doorman is in the model, field by field (``spec/README.md`` has the same table):

* ``grants``: who holds, in which mode, by which ticket, under which fence;
* ``queue``: whose entry, in which mode, in order; ``late`` if it was offered the
  resource and did not claim it in time; a reader is ``admitted`` if it may pass
  writers;
* ``slot``: the reader that waits to upgrade; ``upgraded``: the writer was a reader;
* ``last``: the last fence. The model counts fences from 1, so a fence is its rank.

Some commands have no counterpart in the model (``Unmodelled``); a history ends before
the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiorwlock_remote.core.admission import is_admitted
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Command,
    Downgrade,
    ForceRelease,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, QueueEntry
from aiorwlock_remote.core.ticket import Mode, Policy
from tests.traces.history import Request

Ticket = tuple[str, int]
Pair = tuple[str, str]
"""A client and a mode."""
NO_TICKET: Ticket = ("", 0)
_MODES = {Mode.READ: "R", Mode.WRITE: "W"}


class Unmodelled(Exception):
    """Raised for a command, or a state, that the model does not have."""


@dataclass(frozen=True, slots=True)
class ModelGrant:
    g: str
    m: str
    t: Ticket
    f: int


@dataclass(frozen=True, slots=True)
class ModelEntry:
    g: str
    m: str
    admitted: bool
    late: bool


@dataclass(frozen=True, slots=True)
class ModelState:
    """A doorman as the model sees it."""

    grants: frozenset[ModelGrant]
    queue: tuple[ModelEntry, ...]
    slot: frozenset[str]
    upgraded: bool
    last: int


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request of the model; ``old`` and ``new``: the tickets it names."""

    op: str
    g: str
    m: str
    old: Ticket
    new: Ticket


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One command: what time had ended by then, the requests, and the state then.

    Attributes:
        over: Tickets whose grants had expired.
        lapsed: Queue entries that had expired.
        missed: Queue entries whose claim window was over.
        shut: Whether the window in which readers pass waiting writers was over.
        given: Whether the waiting time of an upgrade was over.
    """

    over: frozenset[Ticket]
    lapsed: frozenset[Pair]
    missed: frozenset[Pair]
    shut: bool
    given: bool
    requests: tuple[ModelRequest, ...]
    seen: ModelState


class Abstraction:
    """Names of one history: short ones for clients and tickets, ranks for fences."""

    def __init__(self, clients: Mapping[str, str]) -> None:
        """``clients``: the processes by their client ids."""
        self._clients = clients
        self._tickets: dict[str, Ticket] = {}
        self._fences = {0: 0}
        # That of a doorman that is not stored: its fences go on from a clock or a
        # revision, and the model's from the last one.
        self._last = 0

    def step(self, request: Request) -> ModelStep:
        """Return what a request is in the model; requests are given in their order.

        Raises:
            Unmodelled: The model has no such command.
        """
        before, now = request.before.record or UNUSED_DOORMAN, request.now
        after = request.after.record or UNUSED_DOORMAN
        slot = before.upgrader
        requests = tuple(self._requests(request, before, after))
        return ModelStep(
            over=frozenset(
                self._ticket(g.ticket) for g in before.grants if g.dead(now)
            ),
            lapsed=frozenset(self._pair(p) for p in before.queue if p.expires <= now),
            missed=frozenset(
                self._pair(p) for p in before.queue if p.missed_claim(now)
            ),
            shut=0 < before.admit_until <= now,
            given=slot is not None and slot.expires <= now,
            requests=requests,
            seen=self.state(after, now),
        )

    def state(self, doorman: Doorman, now: int) -> ModelState:
        """Return the model's view of a doorman at a time of the store's clock."""
        if doorman.has_permits or doorman.pushed:
            raise Unmodelled("permits and pushed grants")
        slot = doorman.upgrader
        if doorman.last:
            self._last = self._fence(doorman.last)
        return ModelState(
            grants=frozenset(
                ModelGrant(
                    self._ticket(grant.ticket)[0],
                    _MODES[grant.mode],
                    self._ticket(grant.ticket),
                    self._fence(grant.fence),
                )
                for grant in doorman.grants
            ),
            queue=tuple(
                ModelEntry(
                    *self._pair(entry),
                    admitted=entry.mode is Mode.READ
                    and is_admitted(doorman, entry, now),
                    late=entry.missed_claim(now),
                )
                for entry in doorman.queue
            ),
            slot=frozenset()
            if slot is None
            else frozenset({self._client(slot.client_id)}),
            upgraded=doorman.upgraded,
            last=self._last,
        )

    def _requests(
        self, request: Request, before: Doorman, after: Doorman
    ) -> Iterator[ModelRequest]:
        command, sender = request.command, request.process
        match command:
            case Acquire():
                yield from self._acquire(command, sender, after)
            case Release(ticket, mode, then):
                grant = before.grant(ticket)
                if mode is not None and grant is not None and grant.mode is not mode:
                    raise Unmodelled("a release of another mode")
                yield self._named("release", sender, "R", new=ticket)
                for acquire in then:
                    yield from self._acquire(acquire, sender, after)
            case Withdraw():
                yield from self._withdraw(command, before)
            case Renew():
                pass  # a grant has not run out yet
            case Downgrade() | Upgrade() | Adopt():
                yield from self._move(command, sender, after)
            case ForceRelease():
                for grant in before.grants:
                    if after.grant(grant.ticket) is None:
                        yield self._named("force", sender, "R", new=grant.ticket)

    def _move(
        self, command: Downgrade | Upgrade | Adopt, sender: str, after: Doorman
    ) -> Iterator[ModelRequest]:
        old, new = command.ticket, command.claim.ticket
        grant, slot = after.grant(new), after.upgrader
        match command:
            case Downgrade():
                yield self._named("down", sender, "R", old, new)
            case Upgrade():
                # A reader that does not wait leaves no trace in the slot.
                if grant is not None or (slot is not None and slot.ticket == old):
                    yield self._named("up", sender, "W", old, new)
            case Adopt():
                mode = "R" if grant is None else _MODES[grant.mode]
                yield self._named("adopt", sender, mode, old, new)

    def _acquire(
        self, command: Acquire, sender: str, after: Doorman
    ) -> Iterator[ModelRequest]:
        if len(command.claims) > 1 or command.more or command.confirms:
            raise Unmodelled("several tasks behind one entry")
        if command.policy is not Policy.FAIR:
            raise Unmodelled(f"policy {command.policy}")
        ticket = command.claims[0].ticket
        # An acquire that may not queue, and is refused, changes nothing.
        queued = after.entry(command.client_id, command.mode) is not None
        if after.grant(ticket) is not None or queued:
            yield self._named("acquire", sender, _MODES[command.mode], new=ticket)

    def _withdraw(self, command: Withdraw, before: Doorman) -> Iterator[ModelRequest]:
        client, mode = self._client(command.client_id), _MODES[command.mode]
        slot = before.upgrader
        if slot is not None and slot.ticket == command.upgrader:
            yield self._named("give up", self._client(slot.client_id), "R")
        if command.keep and before.entry(command.client_id, command.mode) is not None:
            raise Unmodelled("one of several tasks behind one entry leaves")
        for ticket in command.tickets:
            yield self._named("release", client, mode, new=ticket)
        if not command.keep:
            yield self._named("leave", client, mode)

    def _named(
        self, op: str, client: str, mode: str, old: str = "", new: str = ""
    ) -> ModelRequest:
        old_ticket = self._ticket(old, client) if old else NO_TICKET
        new_ticket = self._ticket(new, client) if new else NO_TICKET
        return ModelRequest(op, client, mode, old_ticket, new_ticket)

    def _pair(self, entry: QueueEntry) -> Pair:
        return self._client(entry.client_id), _MODES[entry.mode]

    def _client(self, client_id: str) -> str:
        return self._clients[client_id]

    def _ticket(self, ticket: str, client: str = "") -> Ticket:
        # A ticket is first seen in the request of its owner.
        if ticket not in self._tickets:
            self._tickets[ticket] = client, len(self._tickets) + 1
        return self._tickets[ticket]

    def _fence(self, fence: int) -> int:
        # The fences of a history are seen in their order.
        return self._fences.setdefault(fence, len(self._fences))


def sample(
    history: Sequence[Request], clients: Mapping[str, str], length: int
) -> list[ModelStep]:
    """Return the first steps, up to ``length``, as far as the model has them."""
    abstraction, steps = Abstraction(clients), list[ModelStep]()
    for request in history[:length]:
        try:
            steps.append(abstraction.step(request))
        except Unmodelled:
            break
    return steps


def unmodelled(history: Sequence[Request], clients: Mapping[str, str]) -> str:
    """Return what ends the sample of a history; empty: nothing does."""
    abstraction = Abstraction(clients)
    for request in history:
        try:
            abstraction.step(request)
        except Unmodelled as exc:
            return f"{exc} ({_name(request.command)})"
    return ""


def _name(command: Command) -> str:
    return type(command).__name__
