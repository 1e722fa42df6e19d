"""The line that tells who is in the way."""

from __future__ import annotations

import logging
import re

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, connect
from aiorwlock_remote.core.doorman import (
    UNKNOWN_REQUESTER,
    Doorman,
    Grant,
    MutexRecord,
    QueueEntry,
    Requester,
)
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.ports import ForeignHolder, Snapshot
from aiorwlock_remote.runtime.acquirer import slow_wait_message, waited_so_long
from aiorwlock_remote.runtime.lease import AcquireRequest, LeaseTerms

SECOND = 1_000_000
NOW = 100 * SECOND
ORDER = resource("order", 42)
ASKED = AcquireRequest(ORDER, Mode.WRITE, Policy.FAIR, LeaseTerms(30.0), slow_wait=5)
START = "waited 5 s for order/42 (write), "
SEAT = "t,1"
WEB = Requester("web-3", 71, "", "refund")


def grant(age: int, who: Requester = WEB, mode: Mode = Mode.WRITE) -> Grant:
    return Grant(f"t{age}", mode, 1, NOW - age * SECOND, NOW + SECOND, who)


def place(number: int, client_id: str, mode: Mode, waiting: int = 1) -> QueueEntry:
    return QueueEntry(number, client_id, mode, NOW, NOW + SECOND, SECOND, waiting)


def line(
    *grants: Grant,
    queue: tuple[QueueEntry, ...] = (),
    before: int = 0,
    seat: str | None = SEAT,
    guests: tuple[ForeignHolder, ...] = (),
) -> str:
    record = Doorman(grants=grants, queue=queue, seat=SEAT if grants else None)
    there = MutexRecord(seat) if seat is not None and (grants or seat != SEAT) else None
    seen = Snapshot(ORDER, record, there, NOW, NOW, guests)
    message = slow_wait_message(ASKED, seen, "ours", before, 5.04)
    assert message.startswith(START)
    return message.removeprefix(START)


def test_as_the_documentation_has_it() -> None:
    queue = (
        place(1, "theirs", Mode.WRITE, 2),
        place(2, "ours", Mode.READ),
        place(3, "ours", Mode.WRITE, 5),
        place(4, "theirs", Mode.READ, 9),
    )
    message = line(grant(31), queue=queue)
    assert message == "held 31 s by web-3 pid 71: refund; 4th in queue"


@pytest.mark.parametrize(
    ("before", "place"),
    [(0, "1st"), (1, "2nd"), (2, "3rd"), (10, "11th"), (20, "21st"), (111, "112th")],
)
def test_places_in_the_queue(before: int, place: str) -> None:
    assert line(grant(1), before=before).endswith(f"; {place} in queue")


def test_readers() -> None:
    readers = [grant(age, mode=Mode.READ) for age in (3, 31, 7)]
    message = line(*readers)
    assert message == "held by 3, for 31 s by web-3 pid 71: refund; 1st in queue"


def test_lines_without_holder_or_name() -> None:
    assert line() == "free just now; 1st in queue"
    assert re.match(r"held 3 s by [0-9a-f]{12}; ", line(grant(3, UNKNOWN_REQUESTER)))


def test_programs_that_say_no_more() -> None:
    assert line(seat="foreign,1").startswith("held by a program that gives no details;")
    guest = ForeignHolder("x", Mode.READ)
    assert line(guests=(guest,)).startswith("held by a program that gives no details;")


@pytest.mark.anyio
async def test_a_waiter_does_not_wait_for_the_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store is slow to tell, then fails; the wait goes on, and ends as it would."""
    async with connect("memory://") as locks:
        store = locks._session.client.store
        asked, tell = anyio.Event(), anyio.Event()

        async def look(_: object) -> Snapshot:
            asked.set()
            await tell.wait()
            raise BackendUnavailable(what="gone")

        store.look = look  # type: ignore[method-assign, assignment]
        lock = locks.mutex("order", 42)

        async def wait() -> None:
            async with lock.acquire(slow_wait=0.01):
                entered.set()

        entered = anyio.Event()
        async with anyio.create_task_group() as tasks:
            async with lock:
                tasks.start_soon(wait)
                await asked.wait()
            await entered.wait()
        with caplog.at_level(logging.WARNING, logger="aiorwlock_remote.acquire"):
            tell.set()
            for _ in range(3000):
                if caplog.records:
                    break
                await anyio.sleep(0.01)
        (message,) = caplog.messages
        assert re.fullmatch(r"waited \S+ s for order/42 \(write\): gone", message)


@pytest.mark.parametrize(
    ("waited", "shown"), [(5.0, "5"), (5.09, "5"), (6.27, "6.2"), (4.99, "5")]
)
def test_the_line_states_how_long_the_task_waited(waited: float, shown: str) -> None:
    """Not how long it was to wait: a blocked loop tells it late."""
    assert waited_so_long(ASKED, waited) == f"waited {shown} s for order/42 (write)"
