"""Whatever is held is looked after: the keeper in any order of events, without threads.

Time, the store's answers and the turns of both threads are the test's own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiorwlock_remote.core.commands import Claim, NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Renewal, RenewerBase
from aiorwlock_remote.runtime.deadline_queue import SLOT_SECONDS
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms
from aiorwlock_remote.runtime.lease_keeper import (
    MAX_BATCH,
    RENEWAL_IN_FLIGHT,
    LeaseKeeper,
)
from tests.examples_of_histories import many
from tests.fixed_clock import StandingClock

ORDER = resource("order", 1)
TERMS = st.builds(
    LeaseTerms,
    lease=st.sampled_from([0.2, 1.0, 1.0, 30.0, None]),
    max_stall=st.sampled_from([None, None, 0.5]),
    max_hold=st.sampled_from([None, None, 2.0]),
    keep=st.sampled_from([True, True, False]),
)
OUTCOMES = st.sampled_from(["renewed", "gone", "away", "each failed", "defect"])
NOBODYS_THREAD = threading.Thread()


class FakeLoop(RenewerBase):
    """A clock, an event loop and a renewer that do what the history says."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.soon: list[Callable[[], object]] = []
        self.outcome = "renewed"

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self.soon.append(lambda: function(*args))

    def is_closed(self) -> bool:
        return False

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> list[Grant | NotHeld | Exception]:
        assert timeout > 0
        away = BackendUnavailable(what="away")
        if self.outcome == "away":
            raise away
        if self.outcome == "defect":
            raise ZeroDivisionError
        outcomes: dict[str, Grant | NotHeld | Exception] = {
            "renewed": Claim("t", None).grant(Mode.WRITE, 1, 0),
            "gone": NotHeld("forced"),
            "each failed": away,
        }
        return [outcomes[self.outcome] for _ in batch]


class LeaseKeeperStateMachine(RuleBasedStateMachine):
    """Grants come, are renewed or not, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = FakeLoop()
        self.keeper = LeaseKeeper(lambda: self.loop, self.loop)
        self.keeper._thread = NOBODYS_THREAD
        self.keeper._worker._thread = NOBODYS_THREAD
        self.leases: list[Lease] = []

    @rule(terms=TERMS, ago=st.sampled_from([0.0, 0.1]))
    def is_granted(self, terms: LeaseTerms, ago: float) -> None:
        grant = Claim(f"t{len(self.leases)}", None).grant(Mode.WRITE, 1, 0)
        sent_at = self.loop.clock.seconds - ago
        lease = Lease(ORDER, grant, terms, sent_at, self.loop.clock)
        self.leases.append(lease)
        self.keeper.ready(terms)
        self.keeper.add(lease)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        state=st.sampled_from([LeaseState.RELEASED, LeaseState.DETACHED]),
    )
    def ends(self, data: st.DataObject, state: LeaseState) -> None:
        data.draw(st.sampled_from(self.leases)).end(state)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), seconds=st.sampled_from([0.3, 5.0]))
    def is_extended(self, data: st.DataObject, seconds: float) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        never = lease.terms.lease is None
        lease.renewed(self.loop.clock.seconds, None if never else seconds)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), to=st.sampled_from([(), ("new",)]))
    def is_being_moved(self, data: st.DataObject, to: tuple[str, ...]) -> None:
        data.draw(st.sampled_from(self.leases)).moving = to

    @precondition(lambda self: self.leases)
    @rule(
        seconds=st.sampled_from([0.01, 0.07, 0.34, 0.34, 1.0, 10.0]),
        turns=st.sampled_from(["none", "keeper", "both", "both"]),
        outcome=OUTCOMES,
    )
    def time_passes(self, seconds: float, turns: str, outcome: str) -> None:
        self.loop.clock.seconds += seconds
        if turns != "none":
            self.the_keeper_has_its_turn()
        if turns == "both":
            self.renewals_have_their_turn(outcome)

    def the_keeper_has_its_turn(self) -> None:
        """Until it would sleep. Nothing is believed after its deadline then."""
        while batch := self.keeper._deadlines.take(self.loop.clock.seconds, MAX_BATCH):
            self.keeper._check(batch)
        for lease in self.leases:
            if lease.state is LeaseState.HELD and lease.deadline is not None:
                assert lease.deadline > self.loop.clock.seconds - SLOT_SECONDS

    @precondition(lambda self: not self.keeper._worker._due.empty())
    @rule(outcome=OUTCOMES)
    def renewals_have_their_turn(self, outcome: str) -> None:
        """Whatever they come to, what is held is to be renewed again."""
        self.loop.outcome = outcome
        renewing = self.keeper._worker
        while not renewing._due.empty():
            leases = renewing._next_batch()
            assert leases is not None
            renewing._renew(leases)
        for lease in self.leases:
            if lease.state is LeaseState.HELD and lease.terms.keep and lease.deadline:
                assert lease.renew_due < RENEWAL_IN_FLIGHT

    @precondition(lambda self: self.loop.soon)
    @rule()
    def the_loop_has_its_turn(self) -> None:
        soon, self.loop.soon = self.loop.soon, []
        for call in soon:
            call()

    @invariant()
    def nothing_held_is_forgotten(self) -> None:
        """It is in a slot of the agenda that comes before anything happens to it, or
        gets one when the keeper has its turn.
        """
        agenda = self.keeper._deadlines
        slots = {
            id(leases): slot * SLOT_SECONDS for slot, leases in agenda._due.items()
        }
        assert sorted(agenda._slots) == sorted(agenda._due)
        for lease in self.leases:
            if lease.state is LeaseState.HELD and lease.terms.watched:
                assert lease.slot is not None
                assert lease in lease.slot
                if lease.slot is agenda.arrived:
                    planned = lease.check_at
                else:
                    planned = slots[id(lease.slot)]
                end = math.inf if lease.deadline is None else lease.deadline
                assert planned <= end + SLOT_SECONDS


TestHistories = LeaseKeeperStateMachine.TestCase
TestHistories.settings = settings(max_examples=many(200), stateful_step_count=40)
