"""What time it is at a database with our tables: by a look at no resource."""

from __future__ import annotations

from aiorwlock_remote.cas.table_rows import micros_of
from aiorwlock_remote.core.lease import MICROS, micros
from aiorwlock_remote.ports import Clock, Finding
from aiorwlock_remote.swapping.server_time import ServerTime
from aiorwlock_remote.swapping.tables import Desk, Values

FAR_OFF = 1.0
"""Seconds by which clocks may differ before it is worth a word."""
NOWHERE: Values = {
    "i_kind": "%",
    "i_number": 0,
}  # no name of a resource is encoded like that


async def told_time(desk: Desk, clock: Clock) -> ServerTime:
    """By the server's clock.

    Raises:
        BackendError: as ``desk`` says.
    """
    found = await desk.ask("look", NOWHERE)
    return ServerTime(micros_of(found.now), micros(clock.now()))


async def clock_found(desk: Desk, clock: Clock) -> Finding:
    """How far off ours is.

    Raises:
        BackendError: as ``desk`` says.
    """
    found = await desk.ask("look", NOWHERE)
    ahead = micros_of(found.now) / MICROS - clock.wall()
    return Finding(
        "clock",
        f"{ahead:+.1f} s from ours",
        "leases are counted by the server's, in UTC; a cluster's must agree",
        "good" if abs(ahead) < FAR_OFF else "note",
    )
