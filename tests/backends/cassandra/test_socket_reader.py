"""Who reads the driver's sockets: the loop, or a helper thread if the loop does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from socket import socketpair

import pytest

from aiorwlock_remote.backends.cassandra.socket_reader import SocketReader
from tests.backends.cassandra.fake_loop import FakeConnection, FakeLoop

PATIENCE = 60.0


@pytest.fixture
def line(loop: FakeLoop, reader: SocketReader) -> Iterator[FakeConnection]:
    """A connection that is read from now on."""
    connection = FakeConnection(loop)
    near, far = socketpair()
    with near, far:
        reader.add(connection, near)
        loop.turn()
        assert list(loop.readers) == [near]
        yield connection


def test_the_loop_reads_and_is_not_woken_for_what_it_reads(
    loop: FakeLoop, reader: SocketReader, line: FakeConnection
) -> None:
    got = list[str]()
    take = line.read

    def read() -> None:
        take()
        reader.callbacks.put(got.append, "answer")

    line.read = read  # type: ignore[method-assign]
    (readable,) = loop.readers.values()
    readable()
    assert got == ["answer"]
    assert not loop.calls
    reader.callbacks.put(got.append, "of another thread")
    assert len(loop.calls) == 1


def test_the_helper_reads_what_other_threads_wait_for(
    reader: SocketReader, line: FakeConnection
) -> None:
    for _ in range(20):
        line.was_read.clear()
        line.waited_for = True
        reader.expect()
        assert line.was_read.wait(PATIENCE)
    assert threading.current_thread() not in line.readers


def test_the_helper_reads_again_while_they_wait(
    reader: SocketReader, line: FakeConnection
) -> None:
    """The first time nothing has arrived."""
    line.arrives_at = 3
    line.waited_for = True
    reader.expect()
    assert line.was_read.wait(PATIENCE)
    assert len(line.readers) == 3


def test_a_request_just_before_the_helper_sleeps_is_seen(
    reader: SocketReader, line: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = reader._timers
    first, came = timers.first, list[bool]()

    def meanwhile() -> float:
        """When its time was counted, and before it is waited for."""
        if line.asked.is_set() and not came:
            came.append(True)
            line.waited_for = True
            reader.expect()
        return first()

    monkeypatch.setattr(timers, "first", meanwhile)
    reader.expect()
    assert line.was_read.wait(PATIENCE)


def test_bytes_read_by_the_loop_are_not_read_again(
    reader: SocketReader, line: FakeConnection
) -> None:
    reader.expect()
    assert line.asked.wait(PATIENCE)
    line.asked.clear()
    reader.expect()
    assert line.asked.wait(PATIENCE)
    assert not line.was_read.is_set()


def test_no_request_is_forgotten_whatever_the_helper_does(
    reader: SocketReader, line: FakeConnection
) -> None:
    """Three threads come just while it looks after the one before, or goes to sleep."""

    def come() -> None:
        for _ in range(30):
            line.waited_for = True
            reader.expect()
            while line.waited_for:
                assert line.was_read.wait(PATIENCE)

    threads = [threading.Thread(target=come) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def test_the_socket_is_read_once_more_before_a_call_times_out(
    loop: FakeLoop, reader: SocketReader, line: FakeConnection
) -> None:
    late = threading.Event()

    def note() -> None:
        loop.events.append("late")
        late.set()

    reader.later(0.01, note)
    assert late.wait(PATIENCE)
    assert loop.events == ["read", "late"]
    assert threading.current_thread() not in line.readers


def test_one_that_fails_keeps_no_other_from_being_ended(reader: SocketReader) -> None:
    late = threading.Event()

    def broken() -> None:
        raise ValueError

    reader.later(0.01, broken)
    reader.later(0.01, late.set)
    assert late.wait(PATIENCE)


def test_a_sooner_time_wakes_the_helper(reader: SocketReader) -> None:
    soon = threading.Event()
    reader.later(1000.0, int)
    reader.later(0.01, soon.set)
    assert soon.wait(PATIENCE)


def test_a_socket_is_closed_once_the_loop_has_turned_away(
    loop: FakeLoop, reader: SocketReader, line: FakeConnection
) -> None:
    reader.remove(line)
    assert loop.events == []
    loop.turn()
    assert loop.events == ["turned away", "closed"]


def test_one_that_ended_before_the_loop_came_to_it_is_closed_all_the_same(
    loop: FakeLoop, reader: SocketReader
) -> None:
    connection = FakeConnection(loop)
    near, far = socketpair()
    with near, far:
        reader.add(connection, near)
        reader.remove(connection)
        loop.turn()
    assert "closed" in loop.events
    assert not loop.readers


def test_closed_it_leaves_no_thread(loop: FakeLoop) -> None:
    before = set(threading.enumerate())
    reader = SocketReader(loop, threading.get_ident())
    (helper,) = set(threading.enumerate()) - before
    reader.later(1000.0, int)
    reader.close()
    helper.join(PATIENCE)
    assert not helper.is_alive()
