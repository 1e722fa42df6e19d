"""A program under gevent, for ``test_gevent.py``, with the URL of a store.

What waits here for another greenlet would wait for ever if it blocked the hub.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import gc  # noqa: E402 - all that follows is patched
import os  # noqa: E402
import sys  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
import redis  # noqa: E402

from aiorwlock_remote.compat.redis_py import Lock  # noqa: E402
from aiorwlock_remote.sync import (  # noqa: E402
    ConfigurationError,
    Locks,
    LockTimeout,
    WouldDeadlock,
    connect,
)

NAME = "order", 1
block_the_hub = monkey.get_original("time", "sleep")


def until_queued(locks: Locks, entries: int) -> None:
    """Return when so many clients wait for the lock."""
    while len(locks.rwlock(*NAME).info().queue) != entries:
        gevent.sleep(0.005)


def holders_are_greenlets(locks: Locks, others: Locks) -> None:
    """Greenlets exclude each other, and wait in their order."""
    entered = list[int]()

    def enter(number: int) -> None:
        with others.mutex(*NAME) as held:
            entered.append(number)
            held.check()

    with locks.mutex(*NAME):
        try:
            locks.mutex(*NAME).acquire()
        except WouldDeadlock:
            entered.append(-1)
        in_another = gevent.spawn(lambda: locks.mutex(*NAME).try_acquire())
        assert in_another.get() is None
        waiting = list[gevent.Greenlet]()
        for number in range(5):
            waiting.append(gevent.spawn(enter, number))
            gevent.sleep(0)
        until_queued(locks, 1)
    gevent.joinall(waiting, raise_error=True)
    assert entered == [-1, 0, 1, 2, 3, 4]


def many_turns(locks: Locks, others: Locks) -> None:
    """No update is lost."""
    count = 0

    def add(mine: Locks) -> None:
        nonlocal count
        for _ in range(10):
            with mine.mutex(*NAME):
                before = count
                gevent.sleep(0)
                count = before + 1

    adding = [gevent.spawn(add, mine) for mine in (locks, others) * 4]
    gevent.joinall(adding, raise_error=True)
    assert count == 80


def who_is_interrupted_leaves_nothing(locks: Locks, others: Locks) -> None:
    """Killed, or thrown a ``gevent.Timeout``, while it waits or as it enters."""

    def enter() -> None:
        with suppress(gevent.Timeout), others.mutex(*NAME):
            gevent.sleep(0)

    for error in (gevent.GreenletExit(), gevent.Timeout(1)):
        with locks.mutex(*NAME):
            waiting = gevent.spawn(enter)
            until_queued(locks, 1)
            waiting.kill(error)
            until_queued(locks, 0)
        for turns in range(1, 12):
            entering = gevent.spawn(enter)
            for _ in range(turns):
                gevent.sleep(0)
            entering.kill(error)
        with locks.mutex(*NAME).acquire(timeout=30):
            pass


def a_blocked_hub_loses_no_lock(locks: Locks, others: Locks) -> None:
    """The keeper is a thread, and no greenlet."""
    with locks.mutex(*NAME, lease=0.6) as held:
        block_the_hub(1.2)
        held.check()
        try:
            others.mutex(*NAME).acquire(timeout=0)
        except LockTimeout:
            return
    raise AssertionError("the lock was lost")


def work_of_a_call_runs_in_its_greenlet(locks: Locks, others: Locks) -> None:
    """``once`` calls a job while its own call waits."""
    here = list[gevent.Greenlet]()

    def job() -> None:
        gevent.sleep(0)
        here.append(gevent.getcurrent())

    def run() -> bool:
        return locks.once("report", job, period=3600)

    running = gevent.spawn(run)
    assert running.get()
    assert here == [running]
    assert not others.once("report", job, period=3600)


def a_forked_child_opens_its_own(locks: Locks, others: Locks) -> None:
    """In the child, hub and connection are new."""
    del others
    with locks.mutex("parent", 1):
        child = os.fork()
        if not child:
            code = 1
            try:
                with locks.mutex(*NAME).acquire(timeout=30):
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def locks_of_redis_py(url: str) -> None:
    """``compat.redis_py.Lock``, in greenlets."""
    entered = list[int]()
    with redis.Redis.from_url(url) as client:

        def enter(number: int) -> None:
            with Lock(client, "order-42", timeout=30):
                entered.append(number)

        lock = Lock(client, "order-42", timeout=30)
        with lock:
            waiting = [gevent.spawn(enter, number) for number in range(3)]
            assert not gevent.spawn(lock.owned).get()  # the token is the greenlet's
            assert gevent.spawn(lock.locked).get()
        gevent.joinall(waiting, raise_error=True)
    assert sorted(entered) == [0, 1, 2]


def descriptors_do_not_pile_up(url: str) -> None:
    """A native thread that has waited in a patched function leaves two behind."""

    def enter(locks: Locks) -> None:
        with locks.mutex(*NAME):
            gevent.sleep(0.02)

    def open_and_wait() -> None:
        with connect(url) as locks, connect(url) as others:
            both = [gevent.spawn(enter, mine) for mine in (locks, others)]
            gevent.joinall(both, raise_error=True)

    def descriptors() -> int:
        gc.collect()
        return sum(1 for _ in Path("/dev/fd").iterdir())

    open_and_wait()
    before = descriptors()
    for _ in range(4):
        open_and_wait()
    with gevent.Timeout(20):  # files of SQLite are closed soon, but behind `close`
        while descriptors() > before:
            gevent.sleep(0.01)


def in_an_event_loop() -> None:
    """There a wait would block all tasks, as it would in a thread."""
    import asyncio  # noqa: PLC0415

    async def use() -> None:
        connect("memory://")

    try:
        asyncio.run(use())
    except ConfigurationError:
        return
    raise AssertionError("it was not refused")


def main(url: str) -> None:
    with connect(url) as locks, connect(url) as others:
        for part in (
            holders_are_greenlets,
            many_turns,
            who_is_interrupted_leaves_nothing,
            a_blocked_hub_loses_no_lock,
            work_of_a_call_runs_in_its_greenlet,
            a_forked_child_opens_its_own,
        ):
            part(locks, others)
    descriptors_do_not_pile_up(url)
    if url.startswith("redis:"):
        locks_of_redis_py(url)
    in_an_event_loop()


if __name__ == "__main__":
    main(sys.argv[1])
