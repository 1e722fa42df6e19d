"""Processes at the two tables, whose requests arrive, are lost or come late, as drawn.

Each has a clock of its own. The server carries out what arrives; which answers are
heard, and when, is the history's. Nothing is awaited.
"""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from aiorwlock_remote.cas import CasContention, newer_state
from aiorwlock_remote.core.commands import Claim, Downgrade, Renew, Upgrade
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.simulated_clients import LEASE, ORDER, SimulatedTables, Visit
from tests.examples_of_histories import many

MEMORY = 60.0
SECONDS = st.sampled_from([0.003, 0.05, 0.05, 0.3, 1.0, 1.0, 8.0])
FAILURES = st.sampled_from(
    [
        BackendUnavailable(what="lost"),
        BackendUnavailable(what="not sent", nothing_done=True),
        CasContention(what="perhaps"),
        CasContention(what="certainly not", nothing_done=True),
    ]
)


class TableStateMachine(SimulatedTables):
    """Some processes come and go; the server and its two tables stay."""

    # What processes do.

    @rule(which=st.integers(0, 2), mode=st.sampled_from(LOCK_MODES))
    def somebody_comes(self, which: int, mode: Mode) -> None:
        claim = Claim(f"t{next(self.numbers)}", micros(LEASE))
        visit = Visit(self.processes[which], claim, mode)
        self.visits.append(visit)
        self._ask(visit)

    @precondition(lambda self: self._those("waiting"))
    @rule(data=st.data())
    def asks_again(self, data: st.DataObject) -> None:
        self._ask(data.draw(st.sampled_from(self._those("waiting"))))

    @precondition(lambda self: self._those("held"))
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        self._leave(data.draw(st.sampled_from(self._those("held"))))

    @precondition(lambda self: self._those("asking", "waiting", "held", "ending"))
    @rule(data=st.data())
    def takes_it_back(self, data: st.DataObject) -> None:
        states = "asking", "waiting", "held", "ending"
        self._withdraw(data.draw(st.sampled_from(self._those(*states))))

    @precondition(lambda self: self._those("held"))
    @rule(data=st.data())
    def is_renewed(self, data: st.DataObject) -> None:
        visit = data.draw(st.sampled_from(self._those("held")))
        who = visit.who
        seen = newer_state(who.loop.known(ORDER), who.keeper.known(ORDER))
        if seen is not None:
            who.keeper.saw(ORDER, seen)
        command = Renew(((visit.ticket, visit.claim.lease),))
        on_reply = partial(self._renewed, visit, who.clock.now())
        who.keeper.step(ORDER, command).add_done_callback(on_reply)

    @precondition(lambda self: self._those("held"))
    @rule(data=st.data())
    def moves(self, data: st.DataObject) -> None:
        """To the other mode, under a new ticket; the old one is over then."""
        visit = data.draw(st.sampled_from(self._those("held")))
        claim = Claim(f"t{next(self.numbers)}", micros(LEASE))
        down = visit.mode is Mode.WRITE
        command = (Downgrade if down else Upgrade)(visit.ticket, claim)
        moved = Visit(visit.who, claim, Mode.READ if down else Mode.WRITE, busy=True)
        self.visits.append(moved)
        visit.state = "moving"
        on_reply = partial(self._moved, visit, moved, visit.who.clock.now())
        visit.who.loop.step(ORDER, command).add_done_callback(on_reply)

    @precondition(lambda self: len(self.visits) > 2)
    @rule(which=st.integers(0, 2))
    def dies(self, which: int) -> None:
        """Another one comes in its place. What it sent may arrive yet."""
        dead = self.processes[which]
        for visit in self.visits:
            if visit.who is dead:
                visit.state = "lost"
        self.ghosts += [one for one in self.under_way if one.who is dead]
        self.under_way[:] = [one for one in self.under_way if one.who is not dead]
        dead.dead = True
        self.processes[which] = self._process(dead.clock)

    # What becomes of requests.

    @precondition(lambda self: self.under_way)
    @rule(most=st.integers(1, 6))
    def all_goes_well(self, most: int) -> None:
        for _ in range(most):
            if self.under_way:
                self._arrive(self.under_way[0])
                self._answer(self.under_way[0])

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def one_arrives(self, data: st.DataObject) -> None:
        self._arrive(data.draw(st.sampled_from(self.under_way)))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def one_is_answered(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.under_way))
        self._arrive(one)
        self._answer(one)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), failure=FAILURES)
    def one_is_lost(self, data: st.DataObject, failure: BackendUnavailable) -> None:
        one = data.draw(st.sampled_from(self.under_way))
        if failure.nothing_done and one.found is not None and one.found.done:
            return
        self.under_way.remove(one)
        if one.found is None and not failure.nothing_done:
            self.ghosts.append(one)
        one.answer.set_exception(failure)

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data())
    def one_comes_late(self, data: st.DataObject) -> None:
        ghost = data.draw(st.sampled_from(self.ghosts))
        self.ghosts.remove(ghost)
        self._arrive(ghost)

    # What goes on by itself.

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.virtual_time.run(self.virtual_time.now + seconds)

    @precondition(lambda self: self.tables.doormen and not self.tables.seats)
    @rule()
    def doormen_nobody_uses_are_forgotten(self) -> None:
        self.virtual_time.run(max(self.virtual_time.now, self.written + MEMORY + 0.001))
        self.tables.doormen.clear()

    # What must hold.

    @invariant()
    def whoever_believes_to_hold_does(self) -> None:
        record = self._record()
        inside = [visit for visit in self.visits if self._believes(visit)]
        # A conversion has asked for the other mode: without its reply less is certain.
        sure = [visit for visit in inside if visit.state == "held"]
        for visit in sure:
            assert record.grant(visit.ticket) is not None
        if any(visit.mode is Mode.WRITE for visit in sure):
            assert len(inside) == 1

    @invariant()
    def what_is_over_stays_over(self) -> None:
        tickets = {grant.ticket for grant in self._record().grants}
        assert not tickets & {v.ticket for v in self.visits if v.state == "over"}

    def teardown(self) -> None:
        """The trouble is over: who waits gets in, and in the end nobody is there."""
        waiting = self._those("waiting")
        for _ in range(60 + 6 * len(self.visits)):
            while self.under_way:
                self.all_goes_well(1)
            for visit in self._those("held"):
                self._leave(visit)
            for visit in self._those("asking", "ending"):
                self._withdraw(visit)
            for visit in self._those("waiting"):
                self._ask(visit)
            if all(visit.state in {"over", "lost"} for visit in self.visits):
                break
            self.virtual_time.run(self.virtual_time.now + 0.3)
        else:
            raise AssertionError(self.visits)
        assert all(visit.fence for visit in waiting)
        self.virtual_time.run(self.virtual_time.now + MEMORY)
        last = Visit(self.processes[0], Claim("last", None), Mode.WRITE)
        self._ask(last)
        while last.busy:
            self.all_goes_well(1)
            self.virtual_time.run(self.virtual_time.now + 0.01)
        assert last.state == "held"
        assert not self._record().queue


TestHistories = TableStateMachine.TestCase
TestHistories.settings = settings(max_examples=many(80), stateful_step_count=40)
