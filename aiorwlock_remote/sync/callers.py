"""Who calls the synchronous API, a thread or a greenlet of gevent, and how it waits.

After ``gevent.monkey.patch_all()`` a caller is a greenlet. It waits in the hub of its
thread, so that the other greenlets run; the background loop wakes the hub.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from aiorwlock_remote._util.native import gevent_patched

T = TypeVar("T")


class Caller(Protocol):
    """A thread or a greenlet: the owner of the grants that it gets."""

    @property
    def name(self) -> str: ...

    def is_alive(self) -> bool: ...


class Signal(Protocol):
    """Ends one wait; as a ``threading.Lock`` that is locked at first."""

    def acquire(self, *, timeout: float) -> bool:
        """Wait until ``release`` is called; return whether it was."""

    def release(self) -> None:
        """End the wait; called in any thread, once."""


class Mailbox(Protocol[T]):
    """Passes objects from the loop to a caller that waits; as ``SimpleQueue``."""

    def put(self, item: T) -> None: ...

    def get(self, *, timeout: float) -> T:
        """Return the next object; raise ``Empty`` if none comes in time."""


class _Greenlet:
    def __init__(self, greenlet: Any) -> None:  # noqa: ANN401 - gevent has few types
        self._greenlet = weakref.ref(greenlet)
        self.name: str = getattr(greenlet, "name", "main greenlet")

    def is_alive(self) -> bool:
        greenlet = self._greenlet()
        return greenlet is not None and not greenlet.dead


class _Ended:
    name = "an ended greenlet"

    def is_alive(self) -> bool:
        return False


_ENDED = _Ended()


class _HubSignal:
    """Wakes the greenlet that made it."""

    def __init__(self) -> None:
        from gevent import event, get_hub  # noqa: PLC0415 - imported by the program

        self._event = event.Event()
        self._loop = get_hub().loop

    def acquire(self, *, timeout: float) -> bool:
        # Always with a timeout: gevent raises ``LoopExit`` if nothing else goes on in
        # its loop, as it knows nothing of our thread.
        return bool(self._event.wait(timeout))

    def release(self) -> None:
        # Not ``set`` itself, which is for greenlets of the same thread.
        with suppress(ValueError):  # the caller's thread has ended, and its loop
            self._loop.run_callback_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()


class _HubMailbox(Generic[T]):
    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._signal = _HubSignal()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._signal.release()

    def get(self, *, timeout: float) -> T:
        if not self._items:
            self._signal.acquire(timeout=timeout)
        # Before the look: an object that comes after it sets the signal again.
        self._signal.clear()
        if not self._items:
            raise Empty
        return self._items.popleft()


# A greenlet's one object of this module, as long as it lives.
_greenlets: weakref.WeakKeyDictionary[Any, _Greenlet] = weakref.WeakKeyDictionary()


def current_caller() -> Caller:
    """Return the running thread or greenlet: the same object at each call."""
    if not gevent_patched():
        return threading.current_thread()
    from gevent import getcurrent  # noqa: PLC0415 - imported by the program

    try:
        greenlet = getcurrent()
    except RuntimeError:  # the interpreter ends, and a destructor gives back
        return _ENDED
    found = _greenlets.get(greenlet)
    if found is None:
        found = _greenlets[greenlet] = _Greenlet(greenlet)
    return found


def new_signal() -> Signal:
    """Return what the caller waits for until its call has ended."""
    if gevent_patched():
        return _HubSignal()
    lock = threading.Lock()
    lock.acquire()
    return lock


def new_mailbox() -> Mailbox[Any]:
    """Return what the caller waits for if its call has work for it."""
    if gevent_patched():
        return _HubMailbox()
    return SimpleQueue()
