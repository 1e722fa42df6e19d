"""The line in the log that tells people who is in the way."""

from __future__ import annotations

from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.lease import MICROS
from aiorwlock_remote.core.transition import peek
from aiorwlock_remote.ports import Snapshot
from aiorwlock_remote.runtime.request import AcquireRequest

_ENDINGS = {1: "st", 2: "nd", 3: "rd"}  # codespell:ignore nd


def slow_line(request: AcquireRequest, seen: Snapshot, gate: str, before: int) -> str:
    """``waited 5 s for order/42 (write), held 31 s by web-3 pid 71: …; 4th in queue``.

    ``before``: how many tasks of this process wait before this one. The place in the
    queue counts all tasks, of all processes.
    """
    live, foreign = peek(seen.record, seen.seat, seen.now)
    if foreign is not None or seen.guests:
        held = "held by a program that says no more"
    elif live.grants:
        held = _held(live.grants, seen.now)
    else:
        held = "free just now"
    ahead = before
    for place in live.queue:
        if place.client_id == gate and place.mode is request.mode:
            break
        ahead += place.waiting
    back = seen.set_back // MICROS
    clock = f"; the store's clock was set back by {back} s" if back else ""
    return f"{waited(request)}, {held}; {_ordinal(ahead + 1)} in queue{clock}"


def waited(request: AcquireRequest) -> str:
    """Its beginning."""
    label, mode = request.resource.label, request.mode
    return f"waited {request.slow_wait:g} s for {label} ({mode})"


def _held(grants: tuple[Grant, ...], now: int) -> str:
    first = min(grants, key=lambda grant: grant.since)
    age, who = (now - first.since) // MICROS, first.who
    by = f"{who.host} pid {who.pid}" if who.host else first.holder
    why = f": {who.reason}" if who.reason else ""
    if len(grants) == 1:
        return f"held {age} s by {by}{why}"
    return f"held by {len(grants)}, for {age} s by {by}{why}"


def _ordinal(number: int) -> str:
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{_ENDINGS.get(last, 'th')}"
