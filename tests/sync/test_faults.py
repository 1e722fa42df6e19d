"""Stores that are down: at the start, and in the middle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from traceback import extract_tb
from typing import NoReturn, Protocol

import anyio
import pytest

from aiorwlock_remote.sync import (
    AcquireUncertain,
    BackendUnavailable,
    Closed,
    ConfigurationError,
    LockError,
    LockLost,
    connect,
    twins,
)
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.fix_redis import StartRedis
from tests.servers.process import free_port, until

pytestmark = pytest.mark.slow


class AnyServer(Protocol):
    @property
    def url(self) -> str: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...


@pytest.fixture(params=["redis", "postgresql"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    start: StartRedis | StartPostgresql
    start = request.getfixturevalue(f"start_{request.param}")
    began: AnyServer = start()
    return began


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_down_at_the_start(scheme: str) -> None:
    url = f"{scheme}://user@127.0.0.1:{free_port()}/0"
    locks = connect(url, connect_timeout=1)
    order = locks.mutex("order", 42)
    with pytest.raises(BackendUnavailable) as caught:
        order.acquire()
    # Of the thread's frames only: those of the loop name no cause.
    names = [frame.name for frame in extract_tb(caught.value.__traceback__)]
    assert len(names) < 12, names
    with pytest.raises(BackendUnavailable):
        locks.__enter__()
    assert repr(order) == repr(locks) == "<Locks>"
    locks.close()
    with pytest.raises(Closed):
        order.acquire()


def test_a_store_that_comes_up_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = FaultyMemory()
    with store.down():
        locks = connect(store)
        order = locks.mutex("order", 42)
        with pytest.raises(BackendUnavailable):
            order.acquire()

    def works() -> bool:
        with suppress(BackendUnavailable), order:
            return True
        return False

    until(works, "it is connected")
    with pytest.raises(ConfigurationError):
        locks.mutex("order", 42, lease=-1)
    locks.close()
    said = [record.getMessage().partition(" ")[0] for record in caplog.records]
    events = [event for event in said if event.startswith("store")]
    assert events == ["store_down_at_start", "store_connected"]


def test_while_it_is_down_one_thread_at_a_time_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[int] = []

    class Down:
        async def open(self, *_: object) -> NoReturn:
            attempts.append(1)
            await anyio.sleep(0.2)
            raise BackendUnavailable(what="down")

    monkeypatch.setattr(twins, "back_off", lambda *_, **__: 60.0)
    with closing(connect(Down())) as locks:
        assert len(attempts) == 1
        locks._opener._retry_at = 0.0  # the pause is over
        failed: list[str] = []

        def ask() -> None:
            with pytest.raises(BackendUnavailable) as caught:
                locks.mutex("order", 42).acquire()
            failed.append(str(caught.value))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(attempts) == 2
    assert len(failed) == 20


def test_a_file_that_cannot_be_opened(tmp_path: object) -> None:
    with pytest.raises(LockError):
        connect(f"sqlite:///{tmp_path}/no/folder/locks.db")


def test_down_in_the_middle(server: AnyServer) -> None:
    """Holders learn of their loss, waiters fail in time, and then all goes on."""
    with connect(server.url, lease=2, connect_timeout=2) as locks:
        lock, errors = locks.mutex("order", 1), list[BaseException]()

        def collect(work: Callable[[], object]) -> None:
            try:
                work()
            except LockError as exc:
                errors.append(exc)

        with pytest.raises(LockLost), lock.acquire() as held:
            server.stop()
            work = locks.mutex("order", 2).acquire
            threads = [threading.Thread(target=collect, args=(work,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            while held.lost is None:
                time.sleep(0.05)
        assert len(errors) == len(threads)
        uncertain = BackendUnavailable | AcquireUncertain
        assert all(isinstance(error, uncertain) for error in errors), errors
        server.start()
        until = time.monotonic() + 30
        while True:
            try:
                with lock.acquire(timeout=10) as again:
                    again.check()
                break
            except (BackendUnavailable, AcquireUncertain):
                assert time.monotonic() < until
                time.sleep(0.1)
