"""A link that loses its connection: nothing is repeated, nothing overtaken."""

from __future__ import annotations

import random

import anyio
import pytest

from aiorwlock_remote.backends.redis.connection.connection import (
    MAX_QUEUED_SECONDS,
    OfflineQueue,
)
from aiorwlock_remote.backends.redis.connection.protocol import Call
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.redis.connections import Heard, eventually, killed, linked, settled
from tests.backends.redis.some_scripts import INCR, PUSH
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy, Side
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_a_lost_reply_is_not_repeated(fresh_redis: RedisServer) -> None:
    with Proxy(fresh_redis.port) as proxy:
        heard = Heard()
        async with linked(proxy.url, heard) as link:
            proxy.cut_after(0, to="client")
            with pytest.raises(BackendUnavailable):
                await link.run(INCR, (1, "k"), int)
            await eventually(lambda: heard.reconnects == 1, "reconnected")
            assert await link.run(INCR, (1, "k"), int) == 2


async def test_a_command_cut_in_two_is_not_carried_out(
    fresh_redis: RedisServer,
) -> None:
    with Proxy(fresh_redis.port) as proxy:
        async with linked(proxy.url) as link:
            proxy.cut_after(9, to="server")
            with pytest.raises(BackendUnavailable):
                await link.run(INCR, (1, "k"), int)
            assert await link.run(INCR, (1, "k"), int) == 1


async def test_calls_wait_for_the_next_connection_in_order(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    heard = Heard()
    async with linked(server.url, heard) as link:
        await killed(server, link)
        pushes = [link.run(PUSH, (1, "list", n), int) for n in range(5)]
        server.start()
        assert [await push for push in pushes] == [1, 2, 3, 4, 5]
        assert server.ask("LRANGE", "list", 0, -1) == [b"0", b"1", b"2", b"3", b"4"]
        assert heard.reconnects == 1


async def test_an_unsent_call_fails_in_time_unless_it_is_a_release(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    async with linked(server.url, connect_timeout=2, command_timeout=0.5) as link:
        await killed(server, link)
        urgent = link.run(INCR, (1, "k"), int, must_go=True)
        with pytest.raises(BackendUnavailable, match="not sent"):
            await link.run(INCR, (1, "k"), int)
        with pytest.raises(BackendUnavailable, match="not sent yet") as caught:
            await urgent
        assert not caught.value.nothing_done
        server.start()
        await eventually(lambda: server.ask("GET", "k") == b"1", "it went all the same")


@pytest.mark.parametrize("patience", [1.0, MAX_QUEUED_SECONDS + 10])
def test_no_call_leaves_the_queue_without_an_answer(patience: float) -> None:
    """Also a release whose caller waits for longer than it may be queued."""
    queue = OfflineQueue("here", patience)
    calls = [Call(int, ("GET", "k"), None, must_go) for must_go in (False, True)]
    for call in calls:
        queue.put(call, 1.0)
    last = max(patience, MAX_QUEUED_SECONDS)
    for now in sorted({patience - 0.5, patience, last - 0.5, last}):
        queue.fail_late(1.0 + now, "away")
        assert [call.done() for call in calls] == [now >= patience] * 2
        assert len(queue) == (2 if now < patience else 1 if now < last else 0)
    for call, sent_later in zip(calls, (False, patience < last), strict=True):
        assert isinstance(call.error, BackendUnavailable)
        assert call.error.nothing_done is not sent_later


async def test_the_lost_connection_is_ended_at_the_server(
    fresh_redis: RedisServer,
) -> None:
    # A frozen proxy keeps the old connection open towards the server.
    with Proxy(fresh_redis.port) as proxy:
        heard = Heard()
        async with linked(proxy.url, heard, command_timeout=0.3) as link:
            old = await link.call("CLIENT", "ID")
            proxy.black_hole(on=True)
            with pytest.raises(BackendUnavailable, match="silent"):
                await link.call("PING")
            await eventually(lambda: proxy.orphans > 0, "the loss is not passed on")
            assert fresh_redis.ask("CLIENT", "LIST", "ID", old) != b""
            proxy.black_hole(on=False)
            await eventually(lambda: heard.reconnects == 1, "reconnected")
            killed = fresh_redis.ask("CLIENT", "LIST", "ID", old)
            assert killed == b""


async def test_no_foreign_connection_is_ended_after_a_restart(
    start_redis: StartRedis,
) -> None:
    # Another run of the server counts its connections from the beginning again.
    server = start_redis()
    heard = Heard()
    async with linked(server.url, heard) as link:
        server.restart()
        await eventually(lambda: heard.reconnects == 1, "reconnected")
        await link.call("PING")
        assert "cmdstat_client|kill" not in server.ask("INFO", "commandstats").decode()


async def test_a_silent_server_counts_as_lost(start_redis: StartRedis) -> None:
    server = start_redis()
    async with linked(server.url, command_timeout=0.4, connect_timeout=2) as link:
        server.pause()
        error = await settled(link.run(INCR, (1, "k"), int))
        assert isinstance(error, BackendUnavailable)
        server.resume()
        # In its own time: the first tries may still meet the paused server.
        result = await settled(link.run(INCR, (1, "k"), int, must_go=True))
        assert result in {1, 2}


async def test_a_slow_but_living_server_is_not_lost(start_redis: StartRedis) -> None:
    server = start_redis()
    heard = Heard()
    async with linked(server.url, heard, command_timeout=0.6) as link:
        number = await link.call("CLIENT", "ID")
        # Each answer comes in time, all of them take longer than the timeout.
        for answer in [link.call("WAIT", 1, 300) for _ in range(4)]:
            assert await answer == 0
        assert await link.call("CLIENT", "ID") == number
        assert heard.reconnects == 0


async def test_messages_come_again_after_a_reconnect(start_redis: StartRedis) -> None:
    server = start_redis()
    subscribed: list[object] = []

    class Checks(Heard):
        def reconnected(self) -> None:
            # Subscribed before the link tells.
            subscribed.extend(server.ask("PUBSUB", "NUMSUB", "one"))
            super().reconnected()

    heard = Checks()
    async with linked(server.url, heard, channels=[b"one"]) as link:
        link.subscribe(b"three")
        await killed(server, link)
        link.subscribe(b"two")
        link.unsubscribe(b"three")
        server.start()
        await eventually(lambda: heard.reconnects == 1, "reconnected")
        assert subscribed == [b"one", 1]
        await link.call("PING")
        found = server.ask("PUBSUB", "NUMSUB", "one", "two", "three")
        assert found == [b"one", 1, b"two", 1, b"three", 0]
        await link.call("PUBLISH", "two", "hello")
        assert heard.messages == [(b"two", b"hello")]


async def test_channels_that_change_while_it_reconnects(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    heard = Heard()
    async with linked(server.url, heard, channels=[b"one"]) as link:
        link.subscribe(b"early")
        server.pause()
        assert link._protocol is not None
        link._protocol.drop(BackendUnavailable(what="lost"))
        link.subscribe(b"late")
        link.unsubscribe(b"early")
        server.resume()
        await eventually(lambda: heard.reconnects == 1, "reconnected")
        await link.call("PING")
        found = server.ask("PUBSUB", "NUMSUB", "one", "late", "early")
        assert found == [b"one", 1, b"late", 1, b"early", 0]


async def test_a_user_who_may_do_little(start_redis: StartRedis) -> None:
    rule = "low on >pw ~* &* -@all +hello +script +evalsha +eval +incr +ping +subscribe"
    server = start_redis(users=[rule])
    heard = Heard()
    async with linked(f"redis://low:pw@127.0.0.1:{server.port}", heard) as link:
        assert await link.run(INCR, (1, "k"), int) == 1
        server.ask("CLIENT", "KILL", "USER", "low")
        await eventually(lambda: heard.reconnects == 1, "reconnected without INFO")
        assert await link.run(INCR, (1, "k"), int) == 2


async def test_a_channel_that_is_forbidden_keeps_nobody_from_reconnecting(
    start_redis: StartRedis,
) -> None:
    """Keyspace notifications are done without if the user may not hear them."""
    rules = "low on >pw ~* &own -@all +hello +script +evalsha +eval +incr +subscribe"
    server = start_redis(users=[rules])
    heard = Heard()
    url = f"redis://low:pw@127.0.0.1:{server.port}"
    async with linked(url, heard, channels=[b"own"], connect_timeout=2) as link:
        link.subscribe(b"__keyspace@0__:a")
        assert await link.run(INCR, (1, "k"), int) == 1
        server.ask("CLIENT", "KILL", "USER", "low")
        await eventually(lambda: heard.reconnects == 1, "reconnected")
        assert await link.run(INCR, (1, "k"), int) == 2
        server.ask("PUBLISH", "own", "x")
        await eventually(lambda: heard.messages == [(b"own", b"x")], "heard")


async def test_calls_of_the_lost_tick_use_the_next_connection(
    fresh_redis: RedisServer,
) -> None:
    async with linked(fresh_redis.url) as link:
        assert link._protocol is not None
        sent, *kept = [link.run(PUSH, (1, "list", n), int) for n in range(4)]
        link._protocol.drop(BackendUnavailable(what="lost"))
        kept.append(link.run(PUSH, (1, "list", 4), int))
        assert isinstance(sent.error, BackendUnavailable)
        answers = [await call for call in kept]
        values = [int(value) for value in fresh_redis.ask("LRANGE", "list", 0, -1)]
        assert values[-4:] == [1, 2, 3, 4]
        assert answers[-1] == len(values)


async def test_an_unsent_unsubscribe_is_not_sent_later(
    fresh_redis: RedisServer,
) -> None:
    """The next connection hears what is listened to by then, whatever was said last."""
    async with linked(fresh_redis.url) as link:
        assert link._protocol is not None
        link.subscribe(b"wanted")
        await link.call("PING")
        under_way = link.run(PUSH, (1, "list", 0), int)
        link.unsubscribe(b"wanted")
        link.subscribe(b"unwanted")
        link._protocol.drop(BackendUnavailable(what="lost"))
        link.subscribe(b"wanted")
        link.unsubscribe(b"unwanted")
        assert under_way.done()
        await link.call("PING")
        found = fresh_redis.ask("PUBSUB", "NUMSUB", "wanted", "unwanted")
        assert found == [b"wanted", 1, b"unwanted", 0]


async def test_cut_again_and_again_nothing_is_carried_out_twice(
    fresh_redis: RedisServer,
) -> None:
    # A value that was pushed is unique: twice in the list means it was repeated, and
    # an answered one that is missing means that an answer was made up or mixed up.
    # Of one task the order stays, whatever is lost.
    chance = random.Random(5)
    with Proxy(fresh_redis.port, delay=0.001, seed=5) as proxy:
        async with linked(proxy.url) as link:
            answered: list[bytes] = []
            done = False

            async def work(task: int) -> None:
                for n in range(60):
                    value = f"{task}.{n}"
                    pending = link.run(PUSH, (1, "list", value), int)
                    if not isinstance(await settled(pending), Exception):
                        answered.append(value.encode())

            async def cut() -> None:
                while not done:
                    side: Side = chance.choice(("server", "client"))
                    proxy.cut_after(chance.randrange(4000), to=side)
                    await anyio.sleep(0.02)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cut)
                async with anyio.create_task_group() as workers:
                    for task in range(8):
                        workers.start_soon(work, task)
                done = True
            values = fresh_redis.ask("LRANGE", "list", 0, -1)
            assert proxy.connections > 3
            assert len(values) == len(set(values))
            assert set(answered) <= set(values)
            for task in range(8):
                own = [
                    float(v.split(b".")[1])
                    for v in values
                    if v.startswith(b"%d." % task)
                ]
                assert own == sorted(own)
