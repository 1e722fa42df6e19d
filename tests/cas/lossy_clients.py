"""Processes over one row whose requests and answers get lost.

And late: a swap whose answer was lost may be carried out at any later time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import CasContention, CasStore, StepTimes, StoredState
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import Acquire, Claim
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from tests.fixed_clock import StandingClock

ORDER = resource("order", 42)
NOTHING = StoredState(None, None, None)
LEASE = 1_000_000
CLIENT_ID = "g"


def write(ticket: str, **more: Any) -> Acquire:  # noqa: ANN401
    return Acquire((Claim(ticket, LEASE),), Mode.WRITE, **more)


@dataclass
class SharedRow:
    """One row that many processes share. Its ballots give fences to fresh rows."""

    random: Random = field(default_factory=lambda: Random(0))
    now: int = 1_000
    ballot: int = 1 << 40
    state: StoredState = NOTHING
    versions: int = 0
    refuses: bool = False
    late: list[Callable[[], object]] = field(default_factory=list)

    def swap(self, was: StoredState, record: Doorman, seat: MutexRecord | None) -> bool:
        self.ballot += 1
        if self.refuses:
            return False
        if was.mark != self.state.mark:
            return False
        self.versions += 1
        first = was.record is None
        if first and record.grants:
            grants = tuple(replace(g, fence=self.ballot) for g in record.grants)
            record = replace(record, last=self.ballot, grants=grants)
        gone = not (record.grants or record.queue or seat)
        burn = gone and was.record is None
        self.state = NOTHING if gone else StoredState(record, seat, self.versions)
        if burn:
            self.state = StoredState(None, None, self.versions)
        return True


class Connection(CasStore):
    """A process's ``CasStore`` for the shared row. Records its requests."""

    def __init__(self, row: SharedRow, trouble: float = 0.0) -> None:
        super().__init__(StandingClock())
        self.row = row
        self.trouble = trouble
        self.fates: list[str] = []  # of the next swaps
        self.loads_fail = False
        self.slow = 0
        self.asked: list[str] = []
        self.todo: list[Callable[[], object]] = []

    def guess(self) -> StoredState:
        return NOTHING

    def clock(self) -> int:
        return self.row.now + 77

    def times(self, _: StoredState) -> StepTimes:
        return StepTimes(self.row.now - self.slow, 0, self.row.now, self.clock())

    def load(self, _: Resource) -> Pending[StoredState]:
        self.asked.append("load")
        pending: Pending[StoredState] = Pending()
        away = BackendUnavailable(what="not connected", nothing_done=True)
        self.todo.append(
            lambda: (
                pending.set_exception(away)
                if self.loads_fail
                else pending.set_result(self.row.state)
            )
        )
        return pending

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[tuple[bool, StoredState | None]]:
        del resource, times, wakes
        self.asked.append("swap")
        pending: Pending[tuple[bool, StoredState | None]] = Pending()
        do = partial(self.row.swap, state, record, seat)
        chance = self.row.random.random()
        fate = self.fates.pop(0) if self.fates else "answered"
        if chance < self.trouble:
            fate = self.row.random.choice(("done", "late", "never"))

        def answered() -> None:
            done = do()
            found = self.row.state if done or chance < 0.8 else None
            pending.set_result((done, found))

        def lost() -> None:
            if fate in {"done", "gave up, done"}:
                do()
            elif fate in {"late", "gave up, late"}:
                self.row.late.append(do)
            error = CasContention if fate.startswith("gave up") else BackendUnavailable
            undone = fate == "gave up, undone"
            pending.set_exception(error(what="no answer", nothing_done=undone))

        self.todo.append(answered if fate == "answered" else lost)
        return pending

    def run(self) -> None:
        while self.todo:
            self.todo.pop(0)()


class Party:
    """A process: its swaps are carried out when the test says so."""

    def __init__(self, row: SharedRow, trouble: float = 0.0) -> None:
        self.cas = Connection(row, trouble)
        self.woken: list[tuple[str, ...]] = []
        self.swapping = CasStepper(
            self.cas, lambda _, client_ids: self.woken.append(client_ids)
        )

    def begin(self, command: Any) -> Pending[Any]:  # noqa: ANN401
        return self.swapping.step(ORDER, command)

    def do(self, command: Any) -> Any:  # noqa: ANN401
        pending = self.begin(command)
        self.cas.run()
        return pending.result()

    @property
    def asked(self) -> list[str]:
        asked, self.cas.asked = self.cas.asked, []
        return asked
