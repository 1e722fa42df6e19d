"""A connection between callers and fake servers: what holds in any order of events.

The servers, time and the turns of the loop are a history's own; the loop is asyncio's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from aiorwlock_remote.backends.redis.connection.connection import RedisConnection
from aiorwlock_remote.backends.redis.connection.protocol import Call, RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop
from tests.backends.redis.fake_server import Line, Server
from tests.backends.redis.some_scripts import BOTH, PUSH
from tests.backends.redis.virtual_time import STEP, Asked, InVirtualTime

OWN, CHANNELS = b"own", st.sampled_from([b"one", b"two"])
KEYS = st.sampled_from([b"a", b"b"])
PORT_STATES = st.sampled_from(["open"] * 4 + ["refused", "silent"])


class ConnectionSetup(InVirtualTime):
    """One link, from its first connection until it is closed."""

    link: RedisConnection | None = None
    recent: int = 2
    """How many of its last connections a server may be at work for."""

    def __init__(self, servers: Sequence[Server]) -> None:
        super().__init__()
        self.servers = servers
        self.lines: list[Line] = []
        """In the order of the dials."""
        self.notified_protocol: RespProtocol | None = None

    @property
    def the_link(self) -> RedisConnection:
        assert self.link is not None
        return self.link

    async def opens(self, options: Options) -> None:
        link = RedisConnection(
            *(options, AsyncioEventLoop(self.clock), BOTH),
            on_message=self.hears,
            on_reconnect=self.is_notified,
            channels=[OWN],
            dial=self.dials,
        )
        self.closes = link.aclose
        await link.open()
        self.link, self.notified_protocol = link, link._protocol

    async def dials(
        self, options: Options, talk: RespProtocol, host: EventLoop
    ) -> Line:
        """Connect as the state of the port says; wait as long as the port is silent."""
        del host
        while self.port_state_of(options) == "silent":  # noqa: ASYNC110 - time is the history's
            await asyncio.sleep(STEP)
        if self.port_state_of(options) == "refused":
            raise ConnectionRefusedError
        line = self.server_of(options).connected(talk, self.loop)
        self.lines.append(line)
        return line

    def port_state_of(self, options: Options) -> str:
        """Where a connection is wanted: "open", "refused" or "silent"."""
        raise NotImplementedError

    def server_of(self, options: Options) -> Server:
        """Connect to an open port."""
        raise NotImplementedError

    def shut(self, line: Line, port_state: str) -> None:
        """How whoever comes after this line is met."""
        raise NotImplementedError

    def all_is_well(self) -> None:
        """Nothing keeps us from being answered."""
        raise NotImplementedError

    def hears(self, channel: bytes, payload: bytes) -> None:
        assert channel in {OWN, b"one", b"two"}
        assert payload == b"hi"

    def is_notified(self) -> None:
        """Messages are heard from now on; the calls that had waited were sent."""
        self.notified_protocol = self.the_link._protocol
        line = self.line_of(self.notified_protocol)
        assert line.open
        assert OWN in line.channels
        assert not self.the_link._offline

    def line_of(self, talk: RespProtocol | None) -> Line:
        (line,) = [each for each in self.lines if each.talk is talk]
        return line

    # What users do.

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), must_go=st.booleans())
    def ask(self, keys: Sequence[bytes], must_go: bool = False) -> None:
        for key in keys:
            number = len(self.asked)
            pending = self.the_link.run(PUSH, (1, key, number), int, must_go=must_go)
            self.asked.append(Asked(number, key, pending, must_go=must_go))

    @rule(key=KEYS)
    def ask_for_two_together(self, key: bytes) -> None:
        number = len(self.asked)
        call = Call(int, (1, key, number), PUSH)
        echo = Call(int, ("ECHO", number + 1))
        self.the_link.send(call, echo)
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
            self.the_link.subscribe(channel)
        else:
            self.the_link.unsubscribe(channel)

    # What a server and the network do.

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), commands=st.integers(1, 9))
    def a_server_works(self, data: st.DataObject, commands: int) -> None:
        line = data.draw(st.sampled_from(self.lines[-self.recent :]))
        for _ in range(commands):
            line.carry_out()

    @precondition(lambda self: self.lines)
    @rule(size=st.sampled_from([1, 3, 20, 1000]))
    def answers_come(self, size: int) -> None:
        self.lines[-1].deliver(size)

    @precondition(lambda self: self.lines)
    @rule(port_state=PORT_STATES, channel=st.none() | CHANNELS, answered=st.booleans())
    def the_connection_is_cut(
        self, port_state: str, channel: bytes | None = None, answered: bool = False
    ) -> None:
        """At our end; the server does not notice. Perhaps while we have much to say.

        Or just after all has been answered, before any caller has its reply.
        """
        if answered:
            self.everything_goes_its_way()
        if channel is not None:
            self.ask([b"a", b"b", b"a"])
            self.listen(channel)
        self.shut(self.lines[-1], port_state)
        self.lines[-1].cut()
        if channel is not None:
            self.listen(channel)

    def somebody_tells(self) -> None:
        for channel in (OWN, b"one", b"two"):
            for server in self.servers:
                server.publish(channel)

    def nothing_is_answered_for_long(self) -> None:
        """Each call gets its outcome, within the time-outs of both sides.

        If all tasks were cancelled, as soon as somebody asks for more.
        """
        self.ask([b"a"])
        self.patience_ends()
        assert all(asked.answers for asked in self.asked)

    # What goes on by itself.

    @rule()
    def all_goes_well(self) -> None:
        super().all_goes_well()
        talk = self.link and self.link._protocol
        if self.closing is None and talk and not talk.in_flight:
            assert self.line_of(talk).channels == {OWN, *self.channels}

    def everything_goes_its_way(self) -> None:
        """Over the last connection: what was sent over others is late."""
        for line in self.lines[-1:]:
            while line.carry_out():
                pass
            line.deliver(len(line.answers))

    # What must be the case.

    @invariant()
    def each_is_answered_once_and_by_its_own(self) -> None:
        done = [number for server in self.servers for _, number in server.done]
        assert len(done) == len(set(done)), "carried out once"
        for asked in self.asked:
            assert asked.answers == asked.pending.done()
            error = asked.pending.error
            if error is not None:
                assert isinstance(error, BackendUnavailable)
                assert not error.nothing_done or asked.number not in done
                if asked.key and not any(
                    asked.number in server.written for server in self.servers
                ):
                    assert error.nothing_done or asked.must_go
            elif asked.pending.done():
                assert asked.pending.result() == asked.number
                assert not asked.key or asked.number in done

    @invariant()
    def in_the_order_of_the_requests(self) -> None:
        for server in self.servers:
            for key in (b"a", b"b"):
                numbers = [number for at, number in server.done if at == key]
                assert numbers == sorted(numbers)

    @invariant()
    def listeners_know_of_the_reconnection(self) -> None:
        talk = self.link and self.link._protocol
        assert talk is None or self.closing or talk is self.notified_protocol

    def is_over(self) -> None:
        if self.link is None:  # what went wrong before that is known
            self.is_left()
        else:
            super().is_over()

    def comes_to_rest(self) -> None:
        """All is answered, and all is heard that somebody listens to."""
        self.all_is_well()
        self.all_goes_well_for_long()
        self.ask([b"a"])  # whoever cancels all tasks has to ask for more
        self.all_goes_well_for_long()
        assert all(asked.answers for asked in self.asked)
        assert self.asked[-1].pending.error is None
        assert self.lines[-1].talk is self.the_link._protocol is self.notified_protocol

    def ends(self) -> None:
        """Nothing is left of it."""
        self.is_closed()
        self.ask([b"a"], must_go=True)
        for line in self.lines:
            while line.carry_out():
                pass
        self.each_is_answered_once_and_by_its_own()
        self.in_the_order_of_the_requests()
        assert all(asked.answers for asked in self.asked)
        assert not any(line.open for line in self.lines)
        assert not asyncio.all_tasks(self.loop)
