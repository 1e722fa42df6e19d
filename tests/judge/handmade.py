"""Histories made by hand: times in milliseconds, one resource, a lease of 100."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Died,
    Event,
    EventMode,
    Granted,
    History,
    Lost,
    Released,
    Releasing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LEASE = 100
MS = 1_000_000
RESOURCE = "catalog,7"


def session(
    who: str,
    mode: EventMode,
    at: int,
    *,
    fence: int,
    asked: int | None = None,
    until: int | None = None,
    forever: bool = False,
    serials: Iterable[int | None] = (),
    left: int | None = None,
    ok: bool | None = True,
) -> list[Event]:
    """One grant at `at`, asked for 1 ms before, and perhaps its release.

    The accesses come 1 ms apart; `who` is holder and process.
    """
    head = (who, RESOURCE, who)
    asked_at = (at - 1 if asked is None else asked) * MS
    last = asked_at + LEASE * MS if until is None else until * MS
    deadline = None if forever else last
    events: list[Event] = [
        Ask(*head, asked_at, mode),
        Granted(*head, at * MS, asked_at, mode, fence, deadline),
    ]
    for step, serial in enumerate(serials, 1):
        time = (at + step) * MS
        events.append(Access(*head, time, mode, fence, step, serial, deadline))
    if left is not None:
        events.append(Releasing(*head, left * MS, deadline))
        events.append(Released(*head, (left + 1) * MS, left * MS, ok))
    return events


def releasing(who: str, at: int, until: int) -> Event:
    return Releasing(who, RESOURCE, who, at * MS, until * MS)


def lost(who: str, at: int) -> Event:
    return Lost(who, RESOURCE, who, at * MS, "expired")


def died(who: str, at: int) -> Event:
    return Died(who, at * MS)


def written(folder: Path, events: Iterable[Event]) -> list[Path]:
    """One file a process, as a real run leaves them."""
    by_process: dict[str, list[Event]] = {}
    for event in events:
        by_process.setdefault(event.process, []).append(event)
    paths = []
    for process, own in by_process.items():
        paths.append(folder / f"{process}.jsonl")
        with History(paths[-1], process=process) as history:
            for event in own:
                history.write(event)
    return paths
