"""What happens in the histories of locks at a server of Redis, whatever the lock."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.recipes.lock_checks import SOME, LockChecks
from tests.recipes.simulated_clients import User

TIMEOUTS = st.sampled_from([None, None, None, 0.0, 0.3, 2.0])
WAYS = st.sampled_from(["enters", "enters", "awaits", "tries"])
RARE = (
    *("OOM command not allowed", "LOADING soon", "", "", "removed", "forgets"),
    *("all are there", "another program", "another program", "ends"),
)
LEASES = st.sampled_from([1.0, 3.0, 60.0])


class LockStateMachine(LockChecks, RuleBasedStateMachine):
    """Three processes and another program, and whatever befalls them."""

    def teardown(self) -> None:
        self.is_over()

    # What users do.

    @precondition(lambda self: self.present(lambda _: True))
    @rule(data=st.data())
    def is_cancelled(self, data: st.DataObject) -> None:
        """It is gone at once, whatever the server does."""
        user = data.draw(st.sampled_from(self.present(lambda _: True)))
        user.is_cancelled()
        self.loop.turn()
        assert user.gone or user.gives_back

    @precondition(lambda self: self.present(User.holds))
    @rule(data=st.data(), removes=st.sampled_from([False, False, True]))
    def leaves(self, data: st.DataObject, *, removes: bool) -> None:
        user = data.draw(st.sampled_from(self.present(User.holds)))
        user.leaves(removes=removes)
        self.loop.turn(1)

    @precondition(lambda self: self.present(User.holds))
    @rule(data=st.data())
    def extends(self, data: st.DataObject) -> None:
        self.extend(data.draw(st.sampled_from(self.present(User.holds))))

    # What the server and the network do.

    @rule(who=SOME, requests=st.integers(1, 4))
    def the_server_works(self, who: int, requests: int) -> None:
        for _ in range(requests):
            self.processes[who].line.carry_out()

    @rule(who=SOME, steps=st.integers(1, 8))
    def answers_come_late(self, who: int, steps: int) -> None:
        self.the_server_works(who, 4)
        self.time_passes(steps, "well")
        self.answers_come(who, 4, 2)

    @rule(who=SOME, carried_out=st.integers(0, 3))
    def a_connection_is_cut_or_made(self, who: int, carried_out: int) -> None:
        line = self.processes[who].line
        if line.up:
            self.the_server_works(who, carried_out)
            line.cut()
        else:
            line.connect()

    # What happens once in a while.

    @rule(what=st.sampled_from(RARE), name=st.integers(0, 1), who=SOME)
    def besides(self, what: str, name: int, who: int) -> None:
        if what == "ends":
            self.a_process_ends(who)
        elif what == "forgets":
            self.all_is_forgotten()
        elif what == "all are there":
            self.all_others_leave()
        elif what == "removed":
            self.is_removed(self.names[name])
        elif what == "another program":
            self.another_program_comes(self.names[name])
        else:
            self.server.mood = what

    # What goes on by itself.

    @rule(who=SOME, outcome=st.sampled_from(["well", "well", "away", "lost reply"]))
    def a_keeper_has_its_turn(self, who: int, outcome: str) -> None:
        self.processes[who].the_keeper_has_its_turn(outcome)

    @rule(times=st.integers(1, 4))
    def the_loop_turns(self, times: int) -> None:
        self.loop.turn(times)
