"""The event loop of a renewal channel: what it costs, and whom it must not disturb."""

from __future__ import annotations

import selectors
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aiorwlock_remote.backends.redis.connection.asyncio_transport import RenewalLoop
from aiorwlock_remote.errors import BackendUnavailable
from tests.backends.redis.connections import renewal_channel
from tests.backends.redis.some_scripts import INCR
from tests.embedded.descriptors import no_descriptors
from tests.servers.redis import RedisServer


def ran(program: str) -> str:
    """What a program prints that ends by itself."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_renewal_channel_takes_two_file_descriptors_and_no_thread(
    fresh_redis: RedisServer,
) -> None:
    """Those by which other threads call it. The third is the connection's."""
    files, threads = open_files(), threading.active_count()
    channel = renewal_channel(fresh_redis.url)
    channel.open(5)
    assert open_files() == files + 3
    assert channel.run_many([(INCR, (1, "k"))], 5) == [1]
    assert threading.active_count() == threads
    channel.close()
    assert open_files() == files


def test_no_file_descriptor_is_left(fresh_redis: RedisServer) -> None:
    """As any other failure to connect: the store's connection may still be there."""
    channel = renewal_channel(fresh_redis.url)
    with no_descriptors(), pytest.raises(BackendUnavailable, match="open files"):
        channel.open(5)
    assert channel.run_many([(INCR, (1, "k"))], 5) == [1]
    channel.close()


def test_a_system_without_poll(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(selectors, "PollSelector")
    channel = renewal_channel(fresh_redis.url)
    assert channel.run_many([(INCR, (1, "k"))], 5) == [1]
    channel.close()


def test_a_forked_child_that_closes_its_copy_disturbs_nobody() -> None:
    """A selector of the kernel's is shared, so the parent would hear no call."""
    output = ran(f"""
import asyncio, os, threading
from {RenewalLoop.__module__} import RenewalLoop

loop = RenewalLoop()
child = os.fork()
if child == 0:
    loop.close()
    os._exit(0)
os.waitpid(child, 0)

async def called():
    event = asyncio.Event()
    call = lambda: loop.call_soon_threadsafe(event.set)
    threading.Timer(0.1, call).start()
    await event.wait()

loop.run_until_complete(called())
loop.close()
print("called")
""")
    assert output == "called"


def test_the_process_ends_while_a_name_is_looked_up() -> None:
    """The resolver may be away for half a minute."""
    output = ran("""
import socket, time
real = socket.getaddrinfo

def slow(host, *args, flags=0, **more):
    if not flags:
        time.sleep(3600)
    return real(host, *args, flags=flags, **more)

socket.getaddrinfo = slow
from aiorwlock_remote import BackendUnavailable
from tests.backends.redis.connections import renewal_channel
from tests.backends.redis.some_scripts import INCR
channel = renewal_channel("redis://slow.invalid:1")
try:
    channel.run_many([(INCR, (1, "k"))], 0.2)
except BackendUnavailable as exc:
    print(exc)
channel.close()
""")
    assert "no answer in time" in output


def test_trio_imports_no_asyncio_before_there_is_something_to_renew(
    fresh_redis: RedisServer,
) -> None:
    output = ran(f"""
import sys, trio
from aiorwlock_remote import connect

async def main():
    async with connect({fresh_redis.url!r}, lease=0.6) as locks:
        async with locks.mutex("a", 1) as held:
            before = "asyncio" in sys.modules
            while "asyncio" not in sys.modules:
                await trio.sleep(0.01)
            held.check()
    print(before)

trio.run(main)
""")
    assert output == "False"
