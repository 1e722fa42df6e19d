"""A cluster's connections between callers and fake nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiorwlock_remote.backends.redis.cluster.client import ClusterClient
from aiorwlock_remote.backends.redis.connection.protocol import Call, RespProtocol
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop
from tests.backends.redis.fake_cluster import CLIENT_ID, HOST, Truth, tag_of
from tests.backends.redis.fake_server import Line
from tests.backends.redis.some_scripts import BOTH, PUSH
from tests.backends.redis.virtual_time import PATIENCE, STEP, Asked, InVirtualTime

NODES = 3
ADDRESSES = [(HOST, number) for number in range(NODES + 2)]
ALL_KEYS = (b"{a}1", b"{a}2", b"{b}", b"c")
EVENTS = {b"__keyspace@0__:" + key: key for key in ALL_KEYS[1:]}


class ClusterSetup(InVirtualTime):
    """From the first connection until all are closed."""

    long = 40

    def __init__(self) -> None:
        super().__init__()
        self.truth = Truth(NODES)
        self.waits: set[int] = set()
        self.misled: list[int] = []
        """The calls that learned of no replicas where nothing had been written."""
        self.alone = True
        """Nobody else has cancelled our tasks."""

    def connects(self) -> None:
        async def connect() -> None:
            options = Options(
                seeds=(ADDRESSES[0], ADDRESSES[1]),
                connect_timeout=PATIENCE,
                command_timeout=PATIENCE,
            )
            self.cluster = ClusterClient(
                *(options, AsyncioEventLoop(self.clock), BOTH, b"wake/" + CLIENT_ID),
                on_message=self.hears,
                on_reconnect=self.is_notified,
                dial=self.dials,
            )
            self.closes = self.cluster.aclose
            await self.cluster.open()

        self.connects_by(connect)

    async def dials(
        self, options: Options, talk: RespProtocol, host: EventLoop
    ) -> Line:
        """Connect as the state of the port says; wait as long as the port is silent."""
        del host
        there = options.host, options.port
        while self.truth.port_states[there] == "silent":  # noqa: ASYNC110 - time is the history's
            await asyncio.sleep(STEP)
        node = self.truth.at(there)
        if node is None or self.truth.port_states[there] == "refused":
            raise ConnectionRefusedError
        return node.connected(talk, self.loop)

    def hears(self, channel: bytes, payload: bytes) -> None:
        assert channel in {*EVENTS, *(key + CLIENT_ID for key in ALL_KEYS)}
        assert payload == b"hi"

    def is_notified(self) -> None:
        self.truth.wakeups += 1

    # What users do.

    def ask(self, keys: Sequence[bytes], *, must_go: bool = False) -> None:
        for key in keys:
            number = len(self.asked)
            pending = self.cluster.run(PUSH, (1, key, number), int, must_go=must_go)
            self.asked.append(Asked(number, key, pending, must_go=must_go))

    def ask_for_two_together(self, key: bytes) -> None:
        number = len(self.asked)
        call = Call(int, (1, key, number), PUSH)
        wait = Call(int, ("WAIT", number, 0))
        self.asked += Asked(number, key, call), Asked(number + 1, b"", wait)
        self.waits.add(number + 1)

        def waited(_: object) -> None:
            """A call answered before the first reply asks again, see replica_acks."""
            if call.done() and not call.error and not wait.error and not wait.result():
                self.misled.append(number)

        wait.add_done_callback(waited)
        self.cluster.send(call, wait)

    def ask_a_question(self, key: bytes, *, anywhere: bool = False) -> None:
        number = len(self.asked)
        if anywhere:
            pending = self.cluster.call("ECHO", number)
        else:
            pending = self.cluster.call_for_key("LOOK", key, number)
        self.asked.append(Asked(number, b"", pending))

    def listen(self, channel: bytes) -> None:
        """Or not any more."""
        self.channels ^= {channel}
        if channel in self.channels:
            self.cluster.subscribe(channel)
        else:
            self.cluster.unsubscribe(channel)

    def every_task_is_cancelled(self) -> None:
        self.alone = False
        super().every_task_is_cancelled()

    # What goes on.

    def nodes_learn_the_map(self) -> None:
        self.truth.tell()

    def all_is_well(self) -> None:
        self.truth.port_states.clear()
        self.truth.moving.clear()
        for node in self.truth.nodes:
            node.asleep = False

    def everything_goes_its_way(self) -> None:
        """Over connections that are open: what was sent over others is late."""
        for line in self.truth.lines():
            if line.open:
                while line.carry_out():
                    pass
                line.deliver(len(line.answers))

    def nothing_is_answered_for_long(self) -> None:
        """Each call gets its outcome, within the time-outs of both sides.

        If all tasks were cancelled, as soon as somebody asks for more.
        """
        self.ask(ALL_KEYS)
        self.patience_ends()
        assert all(asked.answers for asked in self.asked)

    # What must be the case.

    def each_is_answered_once_and_by_its_own(self) -> None:
        done = [number for _, number in self.truth.done]
        assert len(done) == len(set(done)), "carried out once"
        for asked in self.asked:
            assert asked.answers == asked.pending.done()
            error = asked.pending.error
            if error is not None:
                assert isinstance(error, BackendUnavailable)
                assert not error.nothing_done or asked.number not in done
                if asked.key and asked.number not in self.truth.written:
                    assert error.nothing_done or asked.must_go
            elif asked.pending.done() and asked.number not in self.waits:
                assert asked.pending.result() == asked.number
                assert not asked.key or asked.number in done
        assert not self.misled

    def in_the_order_of_the_requests(self) -> None:
        for key in ALL_KEYS:
            numbers = [number for at, number in self.truth.done if at == key]
            assert numbers == sorted(numbers)

    def comes_to_rest(self) -> None:
        """All calls are answered, and all messages are heard where they are sent."""
        self.all_is_well()
        self.truth.tell()
        if not self.alone:  # whoever cancels all tasks has to ask for more
            self.ask(ALL_KEYS)
        self.all_goes_well_for_long()
        assert all(asked.answers for asked in self.asked)
        for number in self.truth.unheard.values():
            assert self.truth.wakeups > self.truth.written[number]
        self.ask(ALL_KEYS)
        self.all_goes_well_for_long()
        assert not any(asked.pending.error for asked in self.asked[-len(ALL_KEYS) :])
        assert not self.truth.unheard
        self.each_channel_is_heard_where_its_slot_is()

    def each_channel_is_heard_where_its_slot_is(self) -> None:
        heard = [
            (channel, node)
            for node in self.truth.nodes
            for line in node.lines
            if line.open
            for channel in line.channels
        ]
        for key in ALL_KEYS:
            owner = self.truth.owner[tag_of(key)]
            assert [node for channel, node in heard if channel == key + CLIENT_ID] == [
                owner
            ]
        open_at = [
            node for node in self.truth.nodes for line in node.lines if line.open
        ]
        assert len(open_at) == len(set(open_at))
        assert set(open_at) == set(self.truth.owner.values())
        wanted = [
            (channel, self.truth.owner[tag_of(EVENTS[channel])])
            for channel in sorted(self.channels)
        ]
        found = [each for each in heard if each[0] in EVENTS]
        assert sorted(found, key=lambda each: each[0]) == wanted

    def ends(self) -> None:
        """Nothing is left of it."""
        self.is_closed()
        self.ask([b"c"], must_go=True)
        for node in self.truth.nodes:
            for line in node.lines:
                while line.carry_out():
                    pass
        self.each_is_answered_once_and_by_its_own()
        self.in_the_order_of_the_requests()
        assert all(asked.answers for asked in self.asked)
        assert not any(line.open for node in self.truth.nodes for line in node.lines)
        assert not asyncio.all_tasks(self.loop)
