"""Threads of the operating system, and what they wait with, also under gevent.

``gevent.monkey.patch_all()`` replaces threads by greenlets, which share one thread: a
keeper that is a greenlet renews nothing while another greenlet computes, and an event
loop in a greenlet is the loop of all. So the library takes from here what its own
threads use. Without gevent these are the classes of ``threading`` and ``queue``.

What greenlets of the program wait with is in ``sync/callers.py``.

A thread that waits in a function that gevent has replaced gets a hub, with two file
descriptors that outlive it. So ours do not, or destroy it (tests/sync/test_gevent.py).
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

__all__ = [
    "Condition",
    "Empty",
    "Event",
    "Lock",
    "NativeThread",
    "SimpleQueue",
    "Thread",
    "destroy_hub",
    "getaddrinfo",
    "gevent_patched",
    "make_thread",
    "new_poll",
    "sleep",
]


class Thread(Protocol):
    """What the library uses of a thread that it has started."""

    @property
    def name(self) -> str: ...

    def start(self) -> None:
        """Start it; ``RuntimeError`` if the interpreter cannot."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


def gevent_patched() -> bool:
    """Return whether gevent has replaced the threads of this process."""
    # Programs without gevent must not pay for importing it.
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _original(module: str, name: str) -> Any:  # noqa: ANN401 - whatever has that name
    return sys.modules["gevent.monkey"].get_original(module, name)


def destroy_hub() -> None:
    """Close what gevent has made for this thread, whose sockets must be closed."""
    if gevent_patched():
        sys.modules["gevent"].get_hub().destroy(destroy_loop=True)


def _blocking(module: ModuleType, name: str) -> Any:  # noqa: ANN401 - as above
    found = getattr(module, name)
    return _original(module.__name__, name) if gevent_patched() else found


def sleep(seconds: float) -> None:
    """Block the thread, also under gevent: not for a thread with greenlets."""
    _blocking(time, "sleep")(seconds)


def getaddrinfo(*server: Any, **kind: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """Resolve a name, as that of ``socket``; block the thread."""
    found: list[tuple[Any, ...]] = _blocking(socket, "getaddrinfo")(*server, **kind)
    return found


def new_poll() -> select.poll:
    """Return a ``select.poll()`` that blocks its thread. Windows has none."""
    made: select.poll = _blocking(select, "poll")()
    return made


class _NativeCondition:
    """``threading.Condition``, whose own code would make locks of gevent."""

    def __init__(self, lock: Any) -> None:  # noqa: ANN401 - of a type without a name
        self._lock = lock
        self.waiters: deque[Any] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = Lock()
        waiter.acquire()
        self.waiters.append(waiter)
        self._lock.release()
        try:
            return waiter.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            self._lock.acquire()
            with suppress(ValueError):  # it was notified
                self.waiters.remove(waiter)

    def notify(self) -> None:
        if self.waiters:
            self.waiters.popleft().release()


class _NativeEvent:  # pyright: ignore[reportUnusedClass] - used if gevent has patched
    """``threading.Event``, for the same reason."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._changed = _NativeCondition(self._lock)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._lock:
            self._set = True
            for _ in range(len(self._changed.waiters)):
                self._changed.notify()

    def clear(self) -> None:
        with self._lock:
            self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._set:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return self._set


if TYPE_CHECKING:
    from queue import SimpleQueue
    from threading import Condition, Event, Lock
else:
    if gevent_patched():
        Lock = _original("_thread", "allocate_lock")
        SimpleQueue = _original("queue", "SimpleQueue")
    else:  # these stay what they are, if gevent patches later
        from queue import SimpleQueue
        from threading import Lock

    def Condition(lock: Lock) -> object:  # noqa: N802 - a class to its callers
        """Return a ``threading.Condition`` of threads."""
        return (_NativeCondition if gevent_patched() else threading.Condition)(lock)

    def Event() -> object:  # noqa: N802 - a class to its callers
        """Return a ``threading.Event`` of threads."""
        return (_NativeEvent if gevent_patched() else threading.Event)()


def _get_ident() -> int:
    ident: int = _original("_thread", "get_ident")()
    return ident


_native_threads: set[int] = set()


class NativeThread:
    """A daemon thread of the operating system that gevent's patches do not reach."""

    def __init__(self, function: Callable[[], object], name: str) -> None:
        self.name: str = name
        self._function = function
        self._running = _original("_thread", "allocate_lock")()
        self._pid = 0

    def start(self) -> None:
        self._pid = os.getpid()
        self._running.acquire()
        try:
            _original("_thread", "start_new_thread")(self._run, ())
        except BaseException:
            self._running.release()
            raise

    def is_alive(self) -> bool:
        """Return whether it runs; False in a forked child process."""
        return self._running.locked() and os.getpid() == self._pid

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; other greenlets of the caller's thread run meanwhile."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = sleep if _get_ident() in _native_threads else time.sleep  # gevent's
        while self.is_alive() and (until is None or time.monotonic() < until):
            pause(0.002)

    def _run(self) -> None:
        _native_threads.add(_get_ident())
        try:
            self._function()
        finally:
            _native_threads.discard(_get_ident())
            self._running.release()
            # The hub, which a thread that has waited in a patched function has, is not
            # destroyed: its sockets may be closed later, by another thread.


def make_thread(function: Callable[[], object], name: str) -> Thread:
    """Return a daemon thread that is not started yet."""
    if gevent_patched():
        return NativeThread(function, name)
    # A daemon, so that a program that never closes its locks can still end.
    return threading.Thread(target=function, name=name, daemon=True)
