"""Each request is answered once, by its own answer: the link in any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aiorwlock_remote.backends.redis.options import Options
from tests.backends.redis.connection_state_machine import ConnectionSetup
from tests.backends.redis.fake_server import Line, Server
from tests.backends.redis.virtual_time import PATIENCE
from tests.examples_of_histories import many

RARE = (
    *("somebody_tells", "it_is_a_replica", "it_is_loading", "all_is_well"),
    *("all_is_well", "it_restarts", "every_task_is_cancelled"),
    *("nothing_is_answered_for_long", "we_close"),
)


class ConnectionStateMachine(ConnectionSetup, RuleBasedStateMachine):
    """One link and its server."""

    def __init__(self) -> None:
        self.server = Server()
        super().__init__([self.server])
        self.port_state = "open"

    @initialize()
    def connects(self) -> None:
        options = Options("h", connect_timeout=PATIENCE, command_timeout=PATIENCE)
        self.connects_by(lambda: self.opens(options))

    def port_state_of(self, options: Options) -> str:
        del options
        return self.port_state

    def server_of(self, options: Options) -> Server:
        del options
        return self.server

    def shut(self, line: Line, port_state: str) -> None:
        del line
        self.port_state = port_state

    @rule(commands=st.integers(1, 3), learns=st.booleans())
    def it_forgets_the_scripts(self, commands: int, learns: bool) -> None:
        """And refuses some calls for it, before somebody else loads them, perhaps."""
        self.server.forget()
        for _ in range(commands):
            self.server.lines[-1].carry_out()
        if learns:
            self.server.learn()

    # What happens once in a while.

    @rule(what=st.sampled_from(RARE))
    def besides(self, what: str) -> None:
        getattr(self, what)()

    def it_is_a_replica(self) -> None:
        self.server.mood = "READONLY a replica"

    def it_is_loading(self) -> None:
        self.server.mood = "LOADING soon"

    def all_is_well(self) -> None:
        self.port_state, self.server.mood = "open", ""

    def it_restarts(self) -> None:
        self.server.restart()

    def teardown(self) -> None:
        self.is_over()


TestHistories = ConnectionStateMachine.TestCase
TestHistories.settings = settings(max_examples=many(100), stateful_step_count=50)
