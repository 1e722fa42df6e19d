"""Each request is answered once, by its own answer: the link in any order of events.

The server, time and the turns of the loop are the story's own; the loop is asyncio's.
"""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.connection.link import Link
from aiorwlock_remote.backends.redis.connection.protocol import Conversation
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Host
from aiorwlock_remote.runtime.asyncio_host import AsyncioHost
from tests.backends.redis.acted import Line, Server
from tests.backends.redis.some_scripts import BOTH, PUSH
from tests.backends.redis.timeless import PATIENCE, STEP, Asked, Timeless

OWN, CHANNELS = b"own", st.sampled_from([b"one", b"two"])
KEYS = st.sampled_from([b"a", b"b"])
RARE = (
    *("somebody_tells", "it_is_a_replica", "it_is_loading", "it_is_well", "it_is_well"),
    *("it_restarts", "every_task_is_cancelled", "nothing_is_answered_for_long"),
    "we_close",
)


class Story(Timeless, RuleBasedStateMachine):
    """One link, from its first connection until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.door = "open"
        self.told_of: Conversation | None = None

    @initialize()
    def connects(self) -> None:
        async def connect() -> None:
            options = Options("h", connect_timeout=PATIENCE, command_timeout=PATIENCE)
            self.link = Link(
                *(options, AsyncioHost(self.clock), BOTH),
                on_message=self.hears,
                on_reconnect=self.is_told,
                channels=[OWN],
                dial=self.dials,
            )
            self.closes = self.link.aclose
            await self.link.open()

        self.connects_by(connect)
        self.told_of = self.link._talk

    async def dials(self, options: Options, talk: Conversation, host: Host) -> Line:
        """As the door is when it is knocked at, and as long as it is silent."""
        del options, host
        while self.door == "silent":  # noqa: ASYNC110 - time is the story's
            await asyncio.sleep(STEP)
        if self.door == "refused":
            raise ConnectionRefusedError
        return self.server.connected(talk, self.loop)

    def hears(self, channel: bytes, payload: bytes) -> None:
        assert channel in {OWN, b"one", b"two"}
        assert payload == b"hi"

    def is_told(self) -> None:
        """Whatever is told from now on is heard; what had waited was sent."""
        self.told_of = self.link._talk
        (line,) = [each for each in self.server.lines if each.talk is self.told_of]
        assert line.open
        assert OWN in line.channels
        assert not self.link._aside

    # What users do.

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), must_go=st.booleans())
    def ask(self, keys: list[bytes], must_go: bool) -> None:
        for key in keys:
            number = len(self.asked)
            pending = self.link.run(PUSH, (1, key, number), int, must_go=must_go)
            self.asked.append(Asked(number, key, pending))

    @rule(key=KEYS)
    def ask_for_two_together(self, key: bytes) -> None:
        number = len(self.asked)
        call = Call(int, (1, key, number), PUSH)
        echo = Call(int, ("ECHO", number + 1))
        self.link.send(call, echo)
        self.asked += [Asked(number, key, call), Asked(number + 1, b"", echo)]

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def do_not_wait_for_it(self, data: st.DataObject) -> None:
        self.loop.forsake(data.draw(st.sampled_from(self.asked[-3:])).pending)

    @rule(channel=CHANNELS)
    def listen(self, channel: bytes) -> None:
        """Or not any more."""
        self.channels ^= {channel}
        if channel in self.channels:
            self.link.subscribe(channel)
        else:
            self.link.unsubscribe(channel)

    # What the server and the network do.

    @rule(data=st.data(), commands=st.integers(1, 9))
    def the_server_works(self, data: st.DataObject, commands: int) -> None:
        line = data.draw(st.sampled_from(self.server.lines[-2:]))
        for _ in range(commands):
            line.carry_out()

    @rule(size=st.sampled_from([1, 3, 20, 1000]))
    def answers_come(self, size: int) -> None:
        self.server.lines[-1].deliver(size)

    @rule(commands=st.integers(1, 3), learns=st.booleans())
    def it_forgets_the_scripts(self, commands: int, learns: bool) -> None:
        """And refuses some calls for it, before somebody else loads them, perhaps."""
        self.server.forget()
        for _ in range(commands):
            self.server.lines[-1].carry_out()
        if learns:
            self.server.learn()

    @rule(
        door=st.sampled_from(["open"] * 4 + ["refused", "silent"]),
        channel=st.none() | CHANNELS,
    )
    def the_connection_is_cut(self, door: str, channel: bytes | None) -> None:
        """At our end; the server does not notice. Perhaps while we have much to say."""
        if channel is not None:
            self.ask([b"a", b"b", b"a"], must_go=False)
            self.listen(channel)
        self.door = door
        self.server.lines[-1].cut()
        if channel is not None:
            self.listen(channel)

    # What happens once in a while.

    @rule(what=st.sampled_from(RARE))
    def besides(self, what: str) -> None:
        getattr(self, what)()

    def somebody_tells(self) -> None:
        for channel in (OWN, b"one", b"two"):
            self.server.publish(channel)

    def it_is_a_replica(self) -> None:
        self.server.mood = "READONLY a replica"

    def it_is_loading(self) -> None:
        self.server.mood = "LOADING soon"

    def it_is_well(self) -> None:
        self.door, self.server.mood = "open", ""

    def it_restarts(self) -> None:
        self.server.restart()

    def nothing_is_answered_for_long(self) -> None:
        """Whoever asked is told, within the time of patience on both sides.

        If all tasks were cancelled, as soon as somebody asks for more.
        """
        self.ask([b"a"], must_go=False)
        self.patience_ends()
        assert all(asked.answers for asked in self.asked)

    # What goes on by itself.

    @rule()
    def all_goes_well(self) -> None:
        super().all_goes_well()
        talk = self.link._talk
        if self.closing is None and talk is not None and not talk.in_flight:
            (line,) = [each for each in self.server.lines if each.talk is talk]
            assert line.channels == {OWN, *self.channels}

    def everything_goes_its_way(self) -> None:
        """Over the last connection: what was sent over others is late."""
        for line in self.server.lines[-1:]:
            while line.carry_out():
                pass
            line.deliver(len(line.answers))

    @invariant()
    def each_is_answered_once_and_by_its_own(self) -> None:
        done = [number for _, number in self.server.done]
        assert len(done) == len(set(done)), "carried out once"
        for asked in self.asked:
            assert asked.answers == asked.pending.done
            error = asked.pending.error
            if error is not None:
                assert isinstance(error, BackendUnavailable)
                assert not error.nothing_done or asked.number not in done
            elif asked.pending.done:
                assert asked.pending.result() == asked.number
                assert not asked.key or asked.number in done

    @invariant()
    def in_the_order_of_the_requests(self) -> None:
        for key in (b"a", b"b"):
            numbers = [number for at, number in self.server.done if at == key]
            assert numbers == sorted(numbers)

    @invariant()
    def who_listens_is_told_to_look(self) -> None:
        talk = getattr(self, "link", None) and self.link._talk
        assert talk is None or self.closing or talk is self.told_of

    def teardown(self) -> None:
        try:
            if self.closing is None and self.asked:
                self.comes_to_rest()
            self.ends()
        finally:
            self.loop.close()

    def comes_to_rest(self) -> None:
        """All is answered, and all is heard that somebody listens to."""
        self.it_is_well()
        for _ in range(30):
            self.all_goes_well()
            self.clock.seconds += STEP
        self.ask([b"a"], must_go=False)  # whoever cancels all tasks has to ask for more
        for _ in range(30):
            self.all_goes_well()
            self.clock.seconds += STEP
        assert all(asked.answers for asked in self.asked)
        assert self.asked[-1].pending.error is None
        assert self.server.lines[-1].talk is self.link._talk is self.told_of

    def ends(self) -> None:
        """Nothing is left of it."""
        self.is_closed()
        self.ask([b"a"], must_go=True)
        for line in self.server.lines:
            while line.carry_out():
                pass
        self.each_is_answered_once_and_by_its_own()
        self.in_the_order_of_the_requests()
        assert all(asked.answers for asked in self.asked)
        assert not any(line.open for line in self.server.lines)
        assert not asyncio.all_tasks(self.loop)


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=150, stateful_step_count=50)
