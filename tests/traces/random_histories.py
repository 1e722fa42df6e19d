"""Histories of a store in memory, for tests: the core under a clock of the test's.

A history is drawn from a seed: three clients with one task each ask, wait, leave, move
and pass on, while time goes on. The rules may be broken (``faults.py``) while it is
received, so that the history differs from the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    IllegalCommand,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import transition
from tests.traces.history import NOTHING, Request, State

MS = 1_000
BEGIN = 1_800_000_000_000_000
LEASE = 800 * MS
CLIENTS = {"id-of-ann": "ann", "id-of-bob": "bob", "id-of-eve": "eve"}


def tell(seed: int, length: int) -> list[Request]:
    """Return a history of one resource, of so many requests."""
    story = _RandomHistory(Random(seed))
    return [story.next() for _ in range(length)]


class _RandomHistory:
    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._state = NOTHING
        self._now = BEGIN
        self._tickets = 0
        # What each client asks for now; None: it waits for nothing.
        self._asking: dict[str, Acquire | None] = dict.fromkeys(CLIENTS)
        self._versions = 0

    def next(self) -> Request:
        while True:
            client = self._chance.choice(list(CLIENTS))
            for command in self._commands(client):
                try:
                    return self._request(client, command)
                except IllegalCommand:
                    continue

    def _request(self, client: str, command: Command) -> Request:
        # Mostly a request takes a millisecond; now and then something ends meanwhile.
        passed = self._chance.choice([1, 1, 1, 1, 1, 20, 130, 900])
        self._now += passed * MS
        before = self._state
        times = self._now, self._now, self._now
        step = transition(before.record, before.seat, command, *times)
        record = step.record if step.record.updated else None
        self._state = State(record, step.seat)
        start, self._versions = self._versions, self._versions + 1
        return Request(
            CLIENTS[client],
            "story",
            command,
            *times,
            before,
            self._state,
            step.reply,
            start=start or None,
            end=self._versions,
        )

    def _commands(self, client: str) -> Iterator[Command]:
        held, waits = self._held(client), self._asking[client]
        if held is None:
            yield self._wait(client, waits)
            return
        self._asking[client] = None
        kind = self._chance.choice(
            ["release"] * 3 + ["pass on", "move", "move", "renew"]
        )
        if kind == "renew":
            yield Renew(((held.ticket, LEASE),))
        elif kind == "pass on":
            yield Adopt(held.ticket, self._claim(client))
        elif kind == "move" and held.mode is Mode.WRITE:
            yield Downgrade(held.ticket, self._claim(client))
        elif kind == "move":
            waits_for_others = self._chance.random() < 0.7
            yield Upgrade(held.ticket, self._claim(client), client, waits_for_others)
        then = (self._acquire(client),) if self._chance.random() < 0.2 else ()
        if then:
            self._asking[client] = then[0]
        yield Release(held.ticket, None, then)

    def _wait(self, client: str, waits: Acquire | None) -> Command:
        if waits is not None and self._chance.random() < 0.2:
            self._asking[client] = None
            return Withdraw(client, waits.mode, (waits.claims[0].ticket,))
        if waits is None:
            waits = self._acquire(client)
            self._asking[client] = waits if waits.may_queue else None
        return waits

    def _acquire(self, client: str) -> Acquire:
        mode = self._chance.choice([Mode.READ, Mode.READ, Mode.WRITE])
        may_queue = self._chance.random() < 0.9
        claim = self._claim(client)
        return Acquire((claim,), mode, client_id=client, may_queue=may_queue)

    def _claim(self, client: str) -> Claim:
        self._tickets += 1
        return Claim(f"{client}.{self._tickets}", LEASE)

    def _held(self, client: str) -> Grant | None:
        record = self._state.record or Doorman()
        own = [g for g in record.grants if g.ticket.startswith(f"{client}.")]
        return own[0] if own else None
