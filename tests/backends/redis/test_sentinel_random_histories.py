"""A link finds the primary, whichever that is, and each request is answered once.

The Sentinels, the servers, time and the turns of the loop are the history's own; what
asks the Sentinels is real, and so is what connects to the server they name.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.backends.redis.connection_state_machine import PORT_STATES
from tests.backends.redis.fake_sentinel import MOODS, SERVERS
from tests.backends.redis.sentinel_state_machine import CONNECT, SentinelSetup
from tests.examples_of_histories import many

SOME = st.integers(0, SERVERS - 1)
INFORMED = st.sets(SOME)
MOOD = st.sampled_from(["", "", "slow", "secretive", *MOODS])
RARE = (
    *(
        "all_is_well",
        "all_is_well",
        "somebody_tells",
        "it_flaps",
        "all_forget_the_name",
    ),
    *("every_task_is_cancelled", "nothing_is_answered_for_long", "we_close"),
)
FATE = st.sampled_from(
    ["dies", "sleeps", "obeys", "is informed", "believes", "believes"]
)
"""Of an old primary."""
TURN = st.sampled_from(
    ["sleeps", "is locked", "restarts", "is loading", "obeys", "believes"]
)
"""That a server takes."""
KNOWS = st.sampled_from(["", "", "the truth", "the truth", "nothing"])
RESOLVER = st.sampled_from(["well", "well", "fails", "silent"])
TROUBLE = st.sampled_from(
    ["a Sentinel", "a server", "another name", "a failover", "the resolver"]
)
"""Before the first connection."""


class SentinelStateMachine(SentinelSetup, RuleBasedStateMachine):
    """One link, from its first connection, which may fail, until it is closed."""

    @initialize(
        data=st.data(),
        troubles=st.integers(0, 4),
        patience=st.sampled_from([3 * CONNECT] * 3 + [0, 0.2, 0.6]),
    )
    def begins(self, data: st.DataObject, troubles: int, patience: float) -> None:
        for _ in range(troubles):
            trouble = data.draw(TROUBLE)
            if trouble == "a Sentinel":
                self.a_sentinel_changes(
                    *(data.draw(SOME), data.draw(MOOD), data.draw(PORT_STATES)),
                    *(data.draw(KNOWS), data.draw(st.booleans())),
                )
            elif trouble == "a server":
                self.a_server_changes(data.draw(SOME), data.draw(TURN))
            elif trouble == "another name":
                self.all_forget_the_name()
            elif trouble == "the resolver":
                self.the_resolver_is(data.draw(RESOLVER))
            else:
                self.a_primary_is_replaced(
                    data.draw(SOME), data.draw(FATE), data.draw(INFORMED)
                )
        self.connects(patience)

    def teardown(self) -> None:
        self.is_over()

    # What becomes of the servers.

    @rule(to=SOME, old=FATE, informed=INFORMED)
    def a_primary_is_replaced(self, to: int, old: str, informed: set[int]) -> None:
        self.fails_over(self.truth.servers[to], old)
        for number in informed:
            self.truth.sentinels[number].learns()

    @rule(number=SOME, turn=TURN)
    def a_server_changes(self, number: int, turn: str) -> None:
        server = self.truth.servers[number]
        if turn == "sleeps":
            server.asleep = not server.asleep
        elif turn == "is locked":
            server.locked = not server.locked
        elif turn == "restarts":
            server.restart()
        elif turn == "is loading" and not server.is_replica:
            server.mood = "" if server.mood else "LOADING soon"
        elif server is not self.truth.primary:
            if turn == "believes":
                server.mood = ""
            else:
                server.obeys(kills=True)

    @rule(number=SOME)
    def all_believe_a_replica(self, number: int) -> None:
        self.ask([b"a", b"b"])
        self.we_are_misled(self.truth.servers[number])

    @rule(number=SOME, port_state=PORT_STATES)
    def a_port_changes(self, number: int, port_state: str) -> None:
        self.truth.servers[number].port_state = port_state

    # What becomes of the Sentinels.

    @rule(
        number=SOME,
        mood=MOOD,
        port_state=PORT_STATES,
        knows=KNOWS,
        by_name=st.booleans(),
    )
    def a_sentinel_changes(
        self, number: int, mood: str, port_state: str, knows: str, by_name: bool
    ) -> None:
        sentinel = self.truth.sentinels[number]
        sentinel.port_state, sentinel.mood, sentinel.by_name = port_state, mood, by_name
        if knows == "nothing":
            sentinel.view = None
        elif knows:
            sentinel.learns()
        sentinel.says_on()

    @rule(number=SOME)
    def a_sentinel_learns(self, number: int) -> None:
        self.truth.sentinels[number].learns()

    @rule(number=SOME, size=st.sampled_from([1, 10, 1000]))
    def a_slow_sentinel_says(self, number: int, size: int) -> None:
        for plug in self.truth.sentinels[number].plugs:
            plug.deliver(size)

    @rule(number=SOME)
    def a_sentinel_is_cut_off(self, number: int) -> None:
        for plug in self.truth.sentinels[number].plugs:
            plug.cut()

    @rule(state=RESOLVER)
    def the_resolver_changes(self, state: str) -> None:
        self.the_resolver_is(state)

    # What happens once in a while.

    @rule(what=st.sampled_from(RARE))
    def besides(self, what: str) -> None:
        getattr(self, what)()


TestHistories = SentinelStateMachine.TestCase
TestHistories.settings = settings(max_examples=many(70), stateful_step_count=50)
