"""Processes at the two tables, and their replies: for ``test_random_histories``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_cas import (
    StoredRow,
    TableCas,
    TableStepper,
    Values,
    load_record,
)
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    NotHeld,
    Release,
    Renewed,
    Reply,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.lease import local_deadline
from tests.cas.tables import Tables, VirtualTime, Watch

ORDER = resource("order", 42)
LEASE, PLACE_LIFE = 2.0, micros(6.0)
CLOCKS = [
    Watch(VirtualTime(), 5.0, 0.9999),
    Watch(VirtualTime(), 7e5),
    Watch(VirtualTime(), 0.0, 1.0001),
]


@dataclass(eq=False)
class Request:
    """On its way there, or back with what it ``found``."""

    who: Process
    name: str
    values: Values = field(repr=False)
    answer: Pending[StoredRow] = field(repr=False)
    found: StoredRow | None = field(default=None, repr=False)


@dataclass(eq=False)
class Visit:
    """One ticket. ``until``: held as far as its process knows, in the world's time."""

    who: Process
    claim: Claim = field(repr=False)
    mode: Mode
    state: str = "asking"  # waiting, held, moving, ending, over, lost
    busy: bool = False
    until: float = 0.0
    fence: int = 0

    @property
    def ticket(self) -> str:
        return self.claim.ticket


@dataclass(eq=False)
class Process:
    """A loop and a keeper, and the executor of both."""

    client_id: str
    clock: Watch = field(repr=False)
    under_way: list[Request] = field(repr=False)
    loop: TableStepper = field(init=False, repr=False)
    keeper: TableStepper = field(init=False, repr=False)
    dead: bool = False

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        """As the executor."""
        answer: Pending[StoredRow] = Pending()
        if not self.dead:
            self.under_way.append(Request(self, name, values, answer))
        return answer


class SimulatedTables(RuleBasedStateMachine):
    """The server and its two tables, and all who ever came."""

    def __init__(self) -> None:
        super().__init__()
        self.virtual_time = VirtualTime()
        self.tables = Tables(self.virtual_time)
        self.under_way: list[Request] = []
        self.ghosts: list[Request] = []
        self.visits: list[Visit] = []
        self.fences: dict[str, int] = {}
        self.highest = 0
        self.written = 0.0
        self.numbers = count()
        self.processes = [self._process(watch) for watch in CLOCKS]

    def _process(self, watch: Watch) -> Process:
        process = Process(
            f"g{next(self.numbers)}",
            Watch(self.virtual_time, watch.origin, watch.speed),
            self.under_way,
        )
        at = micros(process.clock.now())
        time = ServerTime(self.tables.now(), at)
        for name in ("loop", "keeper"):
            cas = TableCas(process, process.clock, time)
            steps = TableStepper(cas, lambda *_: None, self.virtual_time.after)
            setattr(process, name, steps)
        return process

    def _those(self, *states: str) -> list[Visit]:
        found = []
        for visit in self.visits:
            if visit.state == "held" and visit.until <= self.virtual_time.now:
                visit.state = "ending"  # nobody believes in it any more
            if visit.state in states and not visit.busy:
                found.append(visit)
        return found

    def _arrive(self, one: Request) -> None:
        if one.found is not None:
            return
        if one.name == "look":
            one.found = self.tables.look((one.values["i_kind"], one.values["i_number"]))
            return
        one.found = self.tables.swap(one.values)
        if one.found.done:
            self.written = self.virtual_time.now
            self._note(self._record())

    def _answer(self, one: Request) -> None:
        assert one.found is not None
        self.under_way.remove(one)
        one.answer.set_result(one.found)

    def _record(self) -> Doorman:
        for created, _, text in self.tables.doormen.values():
            if text is not None:
                return load_record(text, created)
        return Doorman()

    def _note(self, record: Doorman) -> None:
        """A new phase has a higher fence than all before, nobody a lower one."""
        for grant in record.grants:
            if self.fences.get(grant.ticket) == grant.fence:
                continue  # else it is new, perhaps once more after its lease had ended
            self.fences[grant.ticket] = grant.fence
            new_phase = grant.mode is Mode.WRITE
            least = self.highest + 1 if new_phase else self.highest
            assert grant.fence >= least
            self.highest = grant.fence

    def _believes(self, visit: Visit) -> bool:
        return visit.state in {"held", "moving"} and visit.until > self.virtual_time.now

    def _ask(self, visit: Visit) -> None:
        others = [
            v
            for v in self.visits
            if v.who is visit.who and v.mode is visit.mode and v.state == "waiting"
        ]
        more = len(others) - (visit in others)
        visit.busy = True
        command = Acquire(
            (visit.claim,),
            visit.mode,
            client_id=visit.who.client_id,
            may_queue=True,
            more=more,
            waiting=more + 1,
            entry_ttl=PLACE_LIFE,
        )
        on_reply = partial(self._on_reply, visit, visit.who.clock.now())
        visit.who.loop.step(ORDER, command).add_done_callback(on_reply)

    def _on_reply(self, visit: Visit, sent_at: float, answer: Pending[Reply]) -> None:
        visit.busy = False
        if visit.state == "lost":
            return
        if answer.error is not None:
            assert isinstance(answer.error, BackendUnavailable)
            if visit.state == "asking" and answer.error.nothing_done:
                visit.state = "over"
            elif visit.state == "asking":
                self._withdraw(visit)
            return
        reply = answer.result()
        visit.state = "waiting"
        if isinstance(reply, Granted):
            self._granted(visit, reply, sent_at)

    def _granted(self, visit: Visit, reply: Granted, sent_at: float) -> None:
        (grant,) = reply.grants
        assert grant.fence == self.fences[visit.ticket]
        age = max(0, reply.now - grant.since) / MICROS
        visit.state, visit.fence = "held", grant.fence
        visit.until = self._deadline(visit, sent_at - age)

    def _deadline(self, visit: Visit, sent_at: float) -> float:
        clock = visit.who.clock
        return (local_deadline(sent_at, LEASE, None) - clock.origin) / clock.speed

    def _renewed(self, visit: Visit, sent_at: float, answer: Pending[Reply]) -> None:
        if answer.error is None and visit.state == "held" and self._believes(visit):
            reply = answer.result()
            assert isinstance(reply, Renewed)
            assert isinstance(reply.outcomes[0], Grant)
            visit.until = max(visit.until, self._deadline(visit, sent_at))

    def _moved(
        self, old: Visit, new: Visit, sent_at: float, answer: Pending[Reply]
    ) -> None:
        new.busy = False
        if new.state == "lost":
            return
        error = answer.error
        reply: Any = None if error is not None else answer.result()
        if isinstance(reply, Granted):
            old.state = "over"
            self._granted(new, reply, sent_at)
            return
        refused = error is None or getattr(error, "nothing_done", False)
        new.state = "over" if refused else "ending"
        old.state = "held" if refused and not isinstance(reply, NotHeld) else "ending"

    def _leave(self, visit: Visit) -> None:
        self._end(visit, Release(visit.ticket))

    def _withdraw(self, visit: Visit) -> None:
        others = self._those("asking", "waiting")
        keep = any(v.who is visit.who and v is not visit for v in others)
        client_id, tickets = visit.who.client_id, (visit.ticket,)
        self._end(visit, Withdraw(client_id, visit.mode, tickets, keep=keep))

    def _end(self, visit: Visit, command: Release | Withdraw) -> None:
        visit.state, visit.busy = "ending", True
        visit.who.loop.step(ORDER, command).add_done_callback(
            partial(self._ended, visit)
        )

    def _ended(self, visit: Visit, answer: Pending[Reply]) -> None:
        visit.busy = False
        if visit.state != "lost" and answer.error is None:
            visit.state = "over"
