"""Resources as a store would list them, and a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from aiorwlock_remote import Holder, LockInfo, Queued
from aiorwlock_remote.cli.watch.command import Clock
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import ModeName
from aiorwlock_remote.locks.changes import Change

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def holder(name: str = "a", **other: object) -> Holder:
    """Return a holder whose lease of 30 s has run for one."""
    given = {"mode": "write", "fence": 7, "since": NOON, "age": 1.0, "expires_in": 29.0}
    about = {"host": "web-3", "pid": 4711, "reason": "refund"}
    return Holder(name * 12, **(given | about | other))  # type: ignore[arg-type]


def queued(mode: ModeName = "write", *, waiting: int = 1, age: float = 1.0) -> Queued:
    """A process that waits."""
    return Queued(mode, waiting, age, "web-4", 4712, "report")


def order(
    number: int | str, *holders: Holder, queue: Sequence[Queued] = (), fence: int = 7
) -> LockInfo:
    """Return the lock ``order/number`` as a store lists it."""
    return LockInfo(
        resource_type="order",
        resource_id=str(number),
        holders=holders,
        queue=tuple(queue),
        fence=fence,
        active_readers={},
        has_pending_writer=False,
        pending_writer=None,
        updated_at=NOON,
        created_at=NOON,
        target=resource("order", number),
    )


def brief(changes: Sequence[Change]) -> list[str]:
    """``kind resource holder``, as far as there is one."""
    return [
        " ".join(
            [
                change.kind,
                *([change.now.target.label] if change.now else []),
                *([change.holder.holder[0]] if change.holder else []),
            ]
        )
        for change in changes
    ]


class Time(Clock):
    """Passes only by ``sleep`` and ``pass_by``; ends the test when it is over."""

    def __init__(self, until: float, stop: Callable[[], object]) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []
        self._until, self._stop = until, stop

    def now(self) -> float:
        return self.seconds

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.pass_by(seconds)
        if self.seconds >= self._until:
            self._stop()

    def pass_by(self, seconds: float) -> None:
        """So much later."""
        self.seconds += seconds
