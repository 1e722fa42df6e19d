"""Stores that are down: at the start, and in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import pytest

from aiorwlock_remote.sync import (
    AcquireUncertain,
    BackendUnavailable,
    LockError,
    LockLost,
    connect,
)
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.fix_redis import StartRedis
from tests.servers.process import free_port

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
    with pytest.raises(BackendUnavailable):
        connect(url, connect_timeout=1)


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
