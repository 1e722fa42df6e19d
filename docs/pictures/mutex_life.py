"""Draw the life of a mutex, as the core's own ``transition`` computes it.

`python -m docs.pictures.mutex_life` writes mutex-life.svg. ``edges`` begins with a free
mutex, and carries out every command that two clients can send, and every end of a
lease, a claim window and a queue entry. So each state and step is one of
``aiorwlock_remote.core``; none is written down here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    ForceRelease,
    Release,
    Renew,
    Withdraw,
)
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, MutexRecord
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import peek, transition
from docs.pictures.svg import Picture

LEASE, ENTRY, WINDOW = 3_100_000, 4_300_000, 1_070_000
"""Microseconds; no two of them end together, and leases end while others wait."""

CLIENTS = ("a", "b")
DEPTH = 10
"""Steps from the free mutex. More of them find nothing new (tests/docs)."""

FREE, HELD, WAITED, RESERVED, PUSHED, LATE = (
    "free",
    "held",
    "held, others wait",
    "reserved for the first",
    "granted by message",
    "open to all",
)
STATES = (FREE, HELD, WAITED, RESERVED, PUSHED, LATE)


@dataclass(frozen=True)
class Moment:
    """What the store has at a time: the doorman and the mutex record."""

    record: Doorman
    seat: MutexRecord | None
    now: int

    @property
    def state(self) -> str:
        doorman, _ = peek(self.record, self.seat, self.now, semaphore=False)
        if doorman.pushed and doorman.grants:
            return PUSHED
        if doorman.grants:
            return WAITED if doorman.queue else HELD
        if not doorman.queue:
            return FREE
        late = all(entry.missed_claim(self.now) for entry in doorman.queue)
        return LATE if late else RESERVED

    def after(self, command: Command) -> Moment:
        step = transition(self.record, self.seat, command, self.now, self.now)
        return Moment(step.record, step.seat, self.now)


def edges(*, push: bool, depth: int = DEPTH) -> set[tuple[str, str, str]]:
    """Return each step as its state before, what happens, and its state after.

    ``push``: whether clients hear messages that grant.
    """
    found: set[tuple[str, str, str]] = set()
    begin = Moment(UNUSED_DOORMAN, None, 1_000_000_000)
    todo = deque([(begin, 0)])
    seen: set[object] = {_key(begin)}
    while todo:
        moment, steps = todo.popleft()
        for what, after in _steps(moment, push=push):
            found.add((moment.state, what, after.state))
            if steps + 1 < depth and (key := _key(after)) not in seen:
                seen.add(key)
                todo.append((after, steps + 1))
    return found


def _key(moment: Moment) -> object:
    # Two moments are alike if all times lie equally far in the future.
    doorman, now = moment.record, moment.now
    return (
        tuple((grant.ticket, (grant.expires or 0) - now) for grant in doorman.grants),
        tuple(
            (e.client_id, e.expires - now, e.claim_until and e.claim_until - now)
            for e in doorman.queue
        ),
        doorman.pushed,
    )


def _steps(moment: Moment, *, push: bool) -> Iterator[tuple[str, Moment]]:
    doorman, _ = peek(moment.record, moment.seat, moment.now, semaphore=False)
    holders = {grant.ticket for grant in doorman.grants}
    waiting = {entry.client_id for entry in doorman.queue}
    for client in CLIENTS:
        claim = Claim(client, LEASE)
        acquire = Acquire(
            (claim,),
            Mode.WRITE,
            client_id=client,
            may_queue=True,
            entry_ttl=ENTRY,
            claim_window=WINDOW,
            push=push,
        )
        if client not in holders or doorman.pushed:
            yield ("acquire", moment.after(acquire))
        if client in holders:
            yield "release", moment.after(Release(client))
            yield "renew", moment.after(Renew(((client, LEASE),)))
            yield "break", moment.after(_broken(doorman))
        if client in waiting:
            withdraw = Withdraw(client, Mode.WRITE, (client,))
            yield "give up", moment.after(withdraw)
    yield from _time_passes(moment, doorman)


def _broken(doorman: Doorman) -> ForceRelease:
    (grant,) = doorman.grants
    return ForceRelease(grant.holder, grant.fence)


def _time_passes(moment: Moment, doorman: Doorman) -> Iterator[tuple[str, Moment]]:
    ends = [(grant.expires, "lease ends") for grant in doorman.grants if grant.expires]
    ends += [(entry.expires, "entry ends") for entry in doorman.queue]
    # The window of an entry with a pushed grant is that grant's lease.
    ends += [
        (entry.claim_until, "window ends")
        for entry in doorman.queue
        if entry.claim_until and not doorman.has_pushed(entry.ticket)
    ]
    future = [(at, what) for at, what in ends if at > moment.now]
    # Of two ends at the same time neither would be the cause of what follows.
    soonest = [(at, what) for at, what in future if at == min(future)[0]]
    if len(soonest) == 1:
        ((at, what),) = soonest
        yield what, Moment(moment.record, moment.seat, at)


# ------------------------------------------------------------------- the picture

CAUSES = (
    ("blue", "someone acquires, or the head confirms", ("acquire", "renew")),
    ("orange", "release, break, or the lease ends", ("release", "break", "lease ends")),
    ("green", "a waiter gives up, or is gone", ("give up", "entry ends")),
    ("purple", "the claim window ends", ("window ends",)),
)
"""Colour, words, and the steps that are meant."""

LEFT, TOP, ROW = 10, 78, 48
NAMES, RIGHT = 138, 432
"""The width of the column with the states, and where the arrows end."""


def picture() -> Picture:
    """Draw the states as rows, and each step as an arrow from one row to another."""
    steps = edges(push=False) | edges(push=True)
    drawn = Picture("The life of a mutex: its states and steps", 372)
    for number, (color, words, _) in enumerate(CAUSES):
        drawn.box(LEFT, 10 + number * 16, 10, 10, color, radius=2)
        drawn.words(LEFT + 17, 19 + number * 16, words, color, size=12)
    rows = {state: TOP + 18 + ROW * number for number, state in enumerate(STATES)}
    for state, y in rows.items():
        drawn.line((LEFT + NAMES, y), (430, y), color="box", width=2)
        drawn.box(LEFT, y - 14, NAMES, 28, "box", border="line")
        drawn.words(LEFT + NAMES / 2, y + 4, state, anchor="middle", size=12)
    arrows = [
        (color, before, after)
        for color, _, causes in CAUSES
        for before in STATES
        for after in STATES
        if before != after
        if any((before, one, after) in steps for one in causes)
    ]
    for number, (color, before, after) in enumerate(arrows, 1):
        x = LEFT + NAMES + number * (RIGHT - LEFT - NAMES) / (len(arrows) + 1)
        tip = rows[after] + (1 if rows[after] < rows[before] else -1)
        drawn.box(x - 2.5, rows[before] - 2.5, 5, 5, color, radius=2.5)
        drawn.line((x, rows[before]), (x, tip), color=color, arrow=True)
    return drawn


if __name__ == "__main__":
    picture().write("mutex-life.svg")
