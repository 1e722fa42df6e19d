"""One link at work: order, batches, limits, forgotten scripts, messages."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote.backends.redis.connection import connection as link_module
from aiorwlock_remote.backends.redis.connection import protocol as protocol_module
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from tests.backends.redis.connections import Heard, eventually, linked
from tests.backends.redis.some_scripts import INCR, PUSH
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


async def test_commands_and_scripts(fresh_redis: RedisServer) -> None:
    async with linked(fresh_redis.url) as link:
        assert await link.call("SET", "k", 41) == b"OK"
        assert await link.run(INCR, (1, "k"), int) == 42
        with pytest.raises(BackendError, match="not an integer"):
            await link.call("INCRBY", "k", "many")
        with pytest.raises(TypeError):
            await link.call("SET", "k", None)  # type: ignore[arg-type]
        assert await link.run(INCR, (1, "k"), str) == "43"


async def test_a_tick_leaves_in_one_write_and_in_order(
    fresh_redis: RedisServer,
) -> None:
    with Proxy(fresh_redis.port) as proxy:
        async with linked(proxy.url) as link:
            before = len(proxy.chunks)
            pushes = [link.run(PUSH, (1, "list", n), int) for n in range(100)]
            assert [await push for push in pushes] == list(range(1, 101))
            # The first goes at once, as the line is idle (uvloop itself keeps it
            # until the tick is over); the others go together.
            assert len(proxy.chunks) - before <= 2
            values = [int(value) for value in await link.call("LRANGE", "list", 0, -1)]
            assert values == list(range(100))


async def test_many_tasks_over_a_slow_line(fresh_redis: RedisServer) -> None:
    with Proxy(fresh_redis.port, delay=0.005, seed=7) as proxy:
        async with linked(proxy.url) as link:
            found: list[int] = []

            async def work() -> None:
                found.extend([await link.run(INCR, (1, "k"), int) for _ in range(10)])

            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(work)
            assert sorted(found) == list(range(1, 501))


async def test_cancelling_takes_nothing_back(start_redis: StartRedis) -> None:
    server = start_redis()
    async with linked(server.url) as link:
        server.pause()
        with anyio.CancelScope() as scope:
            pending = link.run(INCR, (1, "k"), int)
            scope.cancel()
            await pending
        assert scope.cancelled_caught
        assert not pending.done()
        server.resume()
        assert await link.call("GET", "k") == b"1"
        assert pending.result() == 1


async def test_too_much_under_way_is_refused_at_once(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_CALLS", 10)
    server = start_redis()
    async with linked(server.url) as link:
        server.pause()
        taken = [link.run(INCR, (1, "k"), int) for _ in range(10)]
        refused = link.run(INCR, (1, "k"), int)
        assert refused.done()
        with pytest.raises(BackendUnavailable, match="not sent"):
            refused.result()
        urgent = link.run(INCR, (1, "k"), int, must_go=True)
        server.resume()
        assert [await call for call in taken] == list(range(1, 11))
        assert await urgent == 11
        assert await link.run(INCR, (1, "k"), int) == 12


async def test_too_many_bytes_unsent_are_refused(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (link_module, protocol_module):
        monkeypatch.setattr(module, "MAX_UNSENT", 1_000_000)
    server = start_redis()
    async with linked(server.url) as link:
        server.pause()
        block = b"x" * 1_000_000
        taken = [link.call("APPEND", "k", block) for _ in range(12)]
        await anyio.lowlevel.checkpoint()
        await eventually(lambda: link._unchecked is None, "crowding is noticed")
        with pytest.raises(BackendUnavailable, match="not sent"):
            link.run(INCR, (1, "n"), int).result()
        server.resume()
        assert [await call for call in taken][-1] == 12_000_000
        assert await link.run(INCR, (1, "n"), int) == 1


async def test_scripts_forgotten_under_load(fresh_redis: RedisServer) -> None:
    async with linked(fresh_redis.url) as link:
        done = False
        found: list[int] = []

        async def flush() -> None:
            while not done:
                fresh_redis.ask("SCRIPT", "FLUSH")
                await anyio.sleep(0.002)

        async def work() -> None:
            for _ in range(100):
                pair = [link.run(INCR, (1, "k"), int) for _ in range(2)]
                found.extend([await call for call in pair])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush)
            async with anyio.create_task_group() as workers:
                for _ in range(10):
                    workers.start_soon(work)
            done = True
        # Each ran once: nothing was repeated, nothing left out.
        assert sorted(found) == list(range(1, 2001))
        stats = fresh_redis.ask("INFO", "errorstats").decode()
        assert "errorstat_NOSCRIPT" in stats


async def test_calls_are_held_back_while_the_scripts_are_loaded(
    fresh_redis: RedisServer,
) -> None:
    async with linked(fresh_redis.url) as link:
        link.scripts_lost()
        held = [link.run(PUSH, (1, "list", n), int) for n in range(3)]
        assert fresh_redis.ask("EXISTS", "list") == 0
        assert len(link._offline) == 3
        link.ready()
        assert [await call for call in held] == [1, 2, 3]


async def test_messages(fresh_redis: RedisServer) -> None:
    heard = Heard()
    async with linked(fresh_redis.url, heard, channels=[b"one"]) as link:
        link.subscribe(b"two")
        link.subscribe(b"two")
        assert await link.call("PUBLISH", "one", "1") == 1
        assert await link.call("PUBLISH", "two", "2") == 1
        link.unsubscribe(b"two")
        link.unsubscribe(b"two")
        assert await link.call("PUBLISH", "two", "3") == 0
        assert heard.messages == [(b"one", b"1"), (b"two", b"2")]
