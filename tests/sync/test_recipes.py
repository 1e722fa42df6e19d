"""Leaders, jobs that run once, and decorators, in threads."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Barrier, Event, Thread
from typing import Any
from uuid import uuid4

import pytest

from aiorwlock_remote import Closed, ConfigurationError, LockLost, LockTimeout, NotOwner
from aiorwlock_remote.sync import Held, Leader, Locks, connect
from tests.servers.process import until

DAY = 86400.0


@pytest.fixture
def place() -> str:
    return f"memory://{uuid4().hex}"


@pytest.fixture
def locks(place: str) -> Iterator[Locks]:
    with connect(place) as locks:
        yield locks


@pytest.fixture
def two(url: str) -> Iterator[tuple[Locks, Locks]]:
    """Two machines."""
    with connect(url) as one, connect(url) as other:
        yield one, other


def lose(locks: Locks, kind: str, name: str) -> None:
    seen = locks.mutex(kind, name).info()
    assert locks.force_release(seen, reason="test") == 1


def in_a_thread(function: Callable[[], object]) -> Thread:
    thread = Thread(target=function)
    thread.start()
    return thread


class TestOnce:
    def test_one_of_many_machines_and_threads_runs_it(
        self, two: tuple[Locks, Locks]
    ) -> None:
        ran: list[int] = []
        together = Barrier(8)

        def attempt(locks: Locks) -> bool:
            together.wait()
            return locks.once("report", lambda: ran.append(1), period=DAY)

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, two * 4)) == 1
        assert ran == [1]

    def test_with_and_decorator(self, locks: Locks) -> None:
        once = locks.once("report", period=DAY)
        with once as mine:
            assert mine is not None
            mine.check()
            with ThreadPoolExecutor() as pool:
                assert not pool.submit(once.run, lambda: None).result(20)
        with once as mine:
            assert mine is None
        calls: list[tuple[int, str]] = []

        @locks.once("mail", period=DAY)
        def mail(number: int, to: str = "all") -> None:
            calls.append((number, to))

        assert mail.__name__ == "mail"
        assert [mail(1, to="us"), mail(2)] == [True, False]
        assert calls == [(1, "us")]

    def test_the_job_runs_in_the_calling_thread(self, locks: Locks) -> None:
        seen: list[int] = []
        locks.once("report", lambda: seen.append(threading.get_ident()), period=DAY)
        assert seen == [threading.get_ident()]

    @pytest.mark.parametrize("retry", [False, True])
    def test_a_job_that_raised(self, locks: Locks, retry: bool) -> None:
        def fail() -> None:
            raise ValueError("the job's")

        with pytest.raises(ValueError, match="the job's"):
            locks.once("report", fail, period=DAY, retry=retry)
        once = locks.once("mail", period=DAY, retry=retry)
        with pytest.raises(ZeroDivisionError), once as mine:
            assert mine
            _ = 1 / 0
        for name in ("report", "mail"):
            again = locks.once(name, period=DAY, retry=retry)
            if retry:  # the mark of the start lives for a moment
                until(partial(again.run, lambda: None), "run again")
            else:
                assert not again.run(lambda: None)

    @pytest.mark.usefixtures("renewed_often")
    def test_a_loss_is_raised_at_the_end(self, locks: Locks) -> None:
        went_on = False
        once = locks.once("report", period=DAY, at_most=3)
        with pytest.raises(LockLost), once as mine:
            assert mine is not None
            lose(locks, "once", "report")
            until(lambda: mine.lost is not None, "lost")
            with pytest.raises(LockLost):
                mine.check()
            went_on = True
        assert went_on

        def job() -> None:
            lose(locks, "once", "mail")
            until(lambda: not locks.mutex("once", "mail").locked(), "broken")

        with pytest.raises(LockLost):
            locks.once("mail", job, period=DAY, at_most=3)

    def test_a_thread_that_dies_gives_back(self, locks: Locks) -> None:
        def die() -> None:
            once = locks.once("report", period=DAY, at_most=300)
            once.__enter__()

        in_a_thread(die).join()
        gc.collect()
        until(lambda: not locks.mutex("once", "report").locked(), "given back")

    def test_unsupported_uses_are_refused(self, locks: Locks) -> None:
        async def job() -> None: ...

        for call in (
            lambda: locks.once("report", job, period=DAY),
            lambda: locks.once("report", period=DAY)(job),
            lambda: locks.once("report", lambda: None),
        ):
            with pytest.raises(ConfigurationError):
                call()


class TestLead:
    def test_one_leads_at_a_time_and_hands_over(self, two: tuple[Locks, Locks]) -> None:
        leading: list[int] = []
        fences: list[int] = []

        def work(held: Held) -> int:
            leading.append(1)
            assert len(leading) == 1
            held.check()
            fences.append(held.fence)
            leading.pop()
            return held.fence

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda one: one.leader("work").lead(work), two * 2))
        assert sorted(results) == fences
        assert len(set(fences)) == 4

    @pytest.mark.usefixtures("renewed_often")
    def test_a_loss_stands_by_again(self, locks: Locks) -> None:
        events: list[str] = []
        runs = 0

        def work(held: Held) -> str:
            nonlocal runs
            runs += 1
            if runs == 1:
                lose(locks, "leader", "work")
                until(lambda: held.lost is not None, "lost")
                # The task waits for this thread: it does not lead again meanwhile.
                assert not locks.mutex("leader", "work").locked()
                held.check()
            return f"run {runs}"

        leader = locks.leader(
            "work",
            on_elected=lambda leader: events.append(f"elected {leader.name}"),
            on_deposed=lambda _: events.append("deposed"),
        )
        done = leader.lead(work)
        assert done == "run 2"
        assert events == ["elected work", "deposed"] * 2

    def test_errors_of_the_work(self, locks: Locks) -> None:
        def fail(_: Held) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            locks.leader("work").lead(fail)
        assert not locks.mutex("leader", "work").locked()

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["standing by", "working"])
    def test_an_interrupt_leaves_nothing(
        self, locks: Locks, place: str, where: str
    ) -> None:
        begun, lock = Event(), locks.mutex("leader", "work")

        def work(_: Held) -> None:
            begun.set()
            # Not one long wait: a signal that comes just before it does not end it.
            for _tick in range(6_000):
                time.sleep(0.01)

        def interrupt() -> None:
            if where == "working":
                begun.wait(60)
            else:
                until(lambda: len(lock.info().queue) == 1, "it stands by")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        with ExitStack() as stack:
            if where == "standing by":
                other = stack.enter_context(connect(place))
                stack.enter_context(other.mutex("leader", "work"))
            thread = in_a_thread(interrupt)
            with pytest.raises(KeyboardInterrupt):
                locks.leader("work").lead(work)
            thread.join()
            until(lambda: not lock.info().queue, "it has left")
        until(lambda: not lock.locked(), "given back")


class TestLeader:
    def test_a_leader_is_renewed_in_the_background(self, locks: Locks) -> None:
        with locks.leader("work") as leader:
            held = leader.elected()
            held.check()
            assert leader.is_leader
            assert leader.fence == held.fence
            assert [holder.fence for holder in leader.info().holders] == [held.fence]
        ended: list[int | None] = [leader.is_leader, leader.fence]
        assert ended == [False, None]
        with pytest.raises(NotOwner):
            leader.elected()
        with leader as again:
            assert again.elected().fence > held.fence
            with pytest.raises(ConfigurationError), leader:
                pass
        assert not locks.mutex("leader", "work").locked()

    def test_callbacks_may_block_and_the_next_waits_for_them(
        self, locks: Locks, place: str
    ) -> None:
        said: list[str] = []
        threads: set[int] = set()

        def candidate(name: str, machine: Locks) -> Leader:
            def elected(leader: Leader) -> None:
                threads.add(threading.get_ident())
                with locks.mutex("order", 1):
                    said.append(f"{name} {leader.is_leader}")

            def deposed(_: Leader) -> None:
                with locks.mutex("order", 1):
                    said.append(f"{name} ends")

            return machine.leader("work", on_elected=elected, on_deposed=deposed)

        with connect(place) as there:
            one, other = candidate("one", locks), candidate("other", there)
            with ExitStack() as stack:
                stack.enter_context(one)
                one.elected()
                with other:
                    until(lambda: len(one.info().queue) == 1, "it stands by")
                    stack.close()
                    other.elected()
                    until(lambda: "other True" in said, "elected")
        assert said == ["one True", "one ends", "other True", "other ends"]
        assert threading.get_ident() not in threads

    def test_an_error_of_the_body_comes_first(self, locks: Locks) -> None:
        with pytest.raises(ZeroDivisionError), locks.leader("work") as leader:
            leader.elected()
            _ = 1 / 0
        assert not locks.mutex("leader", "work").locked()

    def test_closing_ends_it(self) -> None:
        locks = connect("memory://")
        with pytest.raises(Closed), locks.leader("work") as leader:
            leader.elected()
            locks.close()

    def test_unsupported_uses_are_refused(self, locks: Locks) -> None:
        async def callback(_: Leader) -> None: ...

        for options in ({"on_elected": callback}, {"on_deposed": 3}, {"lease": None}):
            with pytest.raises(ConfigurationError):
                locks.leader("work", **options)


class TestDecorators:
    def test_a_lock(self, two: tuple[Locks, Locks]) -> None:
        inside: list[int] = []

        def count(number: int) -> int:
            inside.append(number)
            assert len(inside) == 1
            return inside.pop()

        counts = [one.mutex("job", "x")(count) for one in two]
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(counts[n % 2], n).result() for n in range(8)]
        assert found == list(range(8))

    def test_names_of_the_arguments(self, locks: Locks) -> None:
        @locks.synchronized("order", "{shop}/{order_id}", timeout=0, reason="pay")
        def pay(shop: str, order_id: int) -> str:
            (holder,) = locks.mutex("order", f"{shop}/{order_id}").info().holders
            return f"{holder.mode} {holder.reason}"

        @locks.synchronized("order", "{order_id}", mode="read")
        def show(order_id: int) -> str:
            _, mine = locks.rwlock("order", order_id).info().holders
            return mine.mode

        assert pay("a", order_id=3) == "write pay"
        with locks.mutex("order", "a/3").acquire():
            assert pay("a", 4) == "write pay"
            with ThreadPoolExecutor() as pool, pytest.raises(LockTimeout):
                pool.submit(pay, "a", 3).result(20)
        with locks.rwlock("order", 5).reader.acquire(), ThreadPoolExecutor() as pool:
            assert pool.submit(show, 5).result(20) == "read"

    def test_unsupported_uses_are_refused(self, locks: Locks) -> None:
        async def job(order_id: int) -> int:
            return order_id

        def plain(order_id: int) -> int:
            return order_id

        wrong: Any = "all"
        for call in (
            lambda: locks.mutex("job", "x")(job),
            lambda: locks.synchronized("order", "{order_id}")(job),
            lambda: locks.synchronized("order", "{other}")(plain),
            lambda: locks.synchronized("order", "{order_id}", mode=wrong)(plain),
        ):
            with pytest.raises(ConfigurationError):
                call()
