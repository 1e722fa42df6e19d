"""A thread that is interrupted leaves nothing behind, wherever the interrupt hits."""

from __future__ import annotations

import _thread
import dis
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import random
from types import FrameType
from typing import Any, NoReturn

import pytest

from aiorwlock_remote import sync
from aiorwlock_remote._util import driver_loop
from aiorwlock_remote.sync import Locks, Mutex, background, connect
from tests.servers.process import until

pytestmark = pytest.mark.slow

HERE = str(Path(sync.__file__).parent), driver_loop.__file__
"""What runs in the thread that calls: an interrupt may hit it anywhere."""
EXEMPT = ("__del__", "LockTwin.__exit__")
"""What a destructor raises is dropped, and tells nothing. At the first instruction of
``__exit__``, before any code of it has run, ``with lock`` has left the lock entered;
``with lock.acquire()`` has no such place."""
LOOKS_FOR_SIGNALS = ("CALL", "RESUME", "JUMP_BACKWARD")
PLACES, MOST = 8, 500
"""Places in one acquire and release, at least and at most."""


class Interrupt:
    """Raises ``KeyboardInterrupt`` at the n-th place where Python looks for signals.

    These places are in code of the library's: after the first instruction of a
    function, after a jump back, and after the call of a function written in C.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        # By the id of a frame, which must not live longer: it has the grant.
        self._before: dict[int, str] = {}
        self.raised = False

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401
        if event == "call":
            if frame.f_back is not None:
                # No signal is looked for when a function written in Python returns.
                self._before[id(frame.f_back)] = ""
            # Python 3.11 has no event for the first instruction of a function.
            self._before[id(frame)] = "RESUME"
        name = frame.f_code.co_qualname
        if not frame.f_code.co_filename.startswith(HERE) or name.endswith(EXEMPT):
            return None
        frame.f_trace_opcodes = True
        if event in {"exception", "return"}:
            self._before.pop(id(frame), None)
        elif event == "opcode":
            before = self._before.get(id(frame), "")
            self._before[id(frame)] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(LOOKS_FOR_SIGNALS) and not self.raised:
                self._left -= 1
                if self._left < 0:
                    self.raised = True
                    raise KeyboardInterrupt
        return self


def _with_acquire(lock: Mutex) -> None:
    with lock.acquire():
        pass


def _with_lock(lock: Mutex) -> None:
    with lock:
        pass


def _try(lock: Mutex) -> None:
    held = lock.try_acquire()
    assert held is not None
    held.release()


def _multi(locks: Locks) -> Callable[[Mutex], None]:
    def run(lock: Mutex) -> None:
        with locks.multi(lock, locks.mutex("order", 2)) as (first, second):
            assert first.fence
            assert second.fence

    return run


def interrupted(number: int, work: Callable[[], None]) -> bool:
    """Return whether the n-th place was reached."""
    interrupt = Interrupt(number)
    before = sys.gettrace()
    # Python 3.12 traces instructions only if a frame asked for that before settrace().
    sys._getframe().f_trace_opcodes = True
    sys.settrace(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupt.raised


@pytest.mark.filterwarnings("ignore:.* was dropped without release:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("form", ["with acquire", "with lock", "try", "multi"])
def test_at_each_place(url: str, form: str) -> None:
    with connect(url, lease=300) as locks, connect(url) as others:
        lock = locks.mutex("order", 1)
        seen, second = others.mutex("order", 1), others.mutex("order", 2)
        forms = {
            "with acquire": _with_acquire,
            "with lock": _with_lock,
            "try": _try,
            "multi": _multi(locks),
        }
        for number in range(MOST):
            reached = interrupted(number, lambda: forms[form](lock))
            for one in (seen, second):
                until(partial(_is_free, one), f"free after an interrupt at {number}")
            if not reached:
                break
        else:
            pytest.fail("it did not end")
        assert number >= PLACES
        assert locks.statistics().held == {"read": 0, "write": 0, "permit": 0}


def _is_free(lock: Mutex) -> bool:
    info = lock.info()
    if info.holders:
        gc.collect()
    return not info.holders and not info.queue


@pytest.mark.filterwarnings("ignore:.* was dropped without release:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_at_each_depth_of_the_stack(url: str) -> None:
    """A thread that has no frames left harms neither the loop nor other threads."""
    with connect(url, lease=300) as locks, connect(url) as others:
        lock, seen = locks.mutex("order", 1), others.mutex("order", 1)
        _with_acquire(lock)
        ended, done = list[str](), threading.Event()

        def descend(left: int) -> None:
            if left:
                descend(left - 1)
            else:
                _with_acquire(lock)
                done.set()

        def deep() -> None:
            most = sys.getrecursionlimit()
            for left in range(most, 0, -1):
                try:
                    descend(left)
                except RecursionError:
                    until(partial(_is_free, seen), f"free after {left} frames")
                    ended.append("RecursionError")
                if done.is_set():
                    break

        thread = threading.Thread(target=deep)
        thread.start()
        thread.join()
        assert done.is_set()
        assert len(ended) >= PLACES
        assert locks.statistics().held == {"read": 0, "write": 0, "permit": 0}


@pytest.mark.filterwarnings("ignore:.* was dropped without release:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_signals_at_any_time(url: str) -> None:
    came = False

    def raises(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal came
        del number, frame
        came = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raises)
    main = threading.get_ident()
    try:
        with connect(url, lease=300) as locks, connect(url) as others:
            lock, seen = locks.mutex("order", 1), others.mutex("order", 1)
            _with_lock(lock)
            for _ in range(60):
                came = False
                started = time.monotonic()
                _with_acquire(lock)
                took = time.monotonic() - started
                kill = partial(signal.pthread_kill, main, signal.SIGUSR1)
                timer = threading.Timer(random() * took, kill)
                with suppress(KeyboardInterrupt):
                    timer.start()
                    _with_acquire(lock)
                    # It may have come in a ``__del__``, which Python reports only.
                    while not came:
                        time.sleep(0.01)
                timer.join()
                until(lambda: _is_free(seen), "free after a signal")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_ends_a_wait(url: str) -> None:
    with connect(url) as locks, connect(url) as others:
        lock = locks.mutex("order", 1)
        with others.mutex("order", 1).acquire():
            timer = threading.Timer(0.3, _thread.interrupt_main)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
            timer.join()
            until(lambda: not lock.info().queue, "the queue is empty")
        with lock.acquire(timeout=0) as held:
            assert held.valid


def test_an_interrupted_release_is_carried_out(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent before the thread waits: the interrupt hits the wait only."""
    with connect(url, lease=300) as locks:
        lock = locks.mutex("order", 1)
        held = lock.acquire()
        wait = background._Call.result

        def interrupt(_: background._Call[Any]) -> Any:  # noqa: ANN401
            monkeypatch.setattr(background._Call, "result", wait)
            raise KeyboardInterrupt

        monkeypatch.setattr(background._Call, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            held.release()
        until(lambda: not lock.locked(), "it is released")
        assert held.release() is False


@pytest.mark.parametrize("sent", [False, True])
def test_an_interrupted_wake_up_keeps_nobody_waiting(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    sent: bool,
) -> None:
    """It hits between the note that the loop is woken and the wake-up, or behind it."""
    wake = driver_loop.BackgroundLoop.wake

    def interrupted(self: driver_loop.BackgroundLoop) -> None:
        monkeypatch.setattr(driver_loop.BackgroundLoop, "wake", wake)
        if sent:
            wake(self)
        raise KeyboardInterrupt

    with connect(url, lease=300) as locks, ThreadPoolExecutor(1) as others:
        lock = locks.mutex("order", 1)
        held = lock.acquire()
        monkeypatch.setattr(driver_loop.BackgroundLoop, "wake", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.release()
        with others.submit(lock.acquire, timeout=20).result(30) as theirs:
            assert theirs.valid
        assert not held.valid


def test_an_interrupted_acquire_may_be_repeated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: its grant that came in the last moment is given back before."""
    start = background.Background.start

    def interrupted(self: background.Background, call: background._Call[Any]) -> None:
        monkeypatch.setattr(background.Background, "start", start)
        start(self, call)
        until(lambda: bool(call._results), "it is granted")
        raise KeyboardInterrupt

    with connect(url, lease=300) as locks:
        lock = locks.mutex("order", 1)
        monkeypatch.setattr(background.Background, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        with lock.acquire(timeout=10) as held:
            assert held.valid


def test_an_interrupted_close_is_carried_out(url: str) -> None:
    with connect(url) as others:
        locks = connect(url, lease=300)
        held = locks.mutex("order", 1).acquire()
        timer = threading.Timer(0.0, _thread.interrupt_main)
        try:
            timer.start()
            locks.close()
            timer.join()
        except KeyboardInterrupt:
            locks.close()
        until(lambda: not others.mutex("order", 1).locked(), "it is given back")
        assert not held.valid
