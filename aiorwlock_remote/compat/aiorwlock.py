"""``RWLock`` with the signature and the rules of the package ``aiorwlock``.

::

    from aiorwlock_remote.compat.aiorwlock import RWLock  # in place of aiorwlock

    lock = RWLock(locks=locks, name=("catalog", 7))
    async with lock.reader:
        ...

A task may acquire a lock again that it holds, ``release()`` is not awaited, and
``locked`` looks at this process only. The lock excludes the holders in all processes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.client import Locks, session_of
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.session import end_body

__all__ = ["RWLock"]


@dataclass
class _Owned:
    """What a task holds: one grant, acquired several times.

    A reader inside of a writer has the writer's grant, which stays until both have
    left: the store would let other readers in earlier, but no task is less protected.
    """

    held: Held
    times: dict[Mode, int]


class _Core:
    """State of one ``RWLock`` in this process: which tasks hold it, how often."""

    def __init__(self, locks: Locks, name: tuple[str, ResourceId]) -> None:
        self._loop = session_of(locks).loop
        lock = locks.rwlock(*name)
        self._sides = {Mode.READ: lock.reader, Mode.WRITE: lock.writer}
        self._owned: dict[asyncio.Task[Any], _Owned] = {}

    def task(self) -> asyncio.Task[Any]:
        """Return the running task; ``RuntimeError`` if it is of another event loop."""
        if not self._loop.here():
            raise RuntimeError(
                "this RWLock is bound to a different event loop, that of its Locks"
            )
        task = asyncio.current_task()
        if task is None:  # a callback of the loop
            raise RuntimeError("no running task")
        return task

    def locked(self, mode: Mode) -> bool:
        return any(owned.times[mode] for owned in self._owned.values())

    async def acquire(self, mode: Mode) -> None:
        task = self.task()
        owned = self._owned.get(task)
        if owned is None:
            held = await self._sides[mode].acquire()
            self._owned[task] = owned = _Owned(held, {Mode.READ: 0, Mode.WRITE: 0})
        elif mode is Mode.WRITE and not owned.times[Mode.WRITE]:
            raise RuntimeError("Cannot upgrade RWLock from read to write")
        else:
            owned.held.check()
        owned.times[mode] += 1

    def held(self) -> Held:
        """Return the grant of the running task."""
        return self._owned[self.task()].held

    def leave(self, mode: Mode) -> Held | None:
        """Count one release; return the grant if this was the last one."""
        task = self.task()
        owned = self._owned.get(task)
        if owned is None or not owned.times[mode]:
            raise RuntimeError("Cannot release an un-acquired lock")
        owned.times[mode] -= 1
        if any(owned.times.values()):
            return None
        del self._owned[task]
        return owned.held


class _Side:
    """The reader's or the writer's lock of a ``RWLock``."""

    _mode: Mode

    def __init__(self, core: _Core) -> None:
        self._core = core
        self._scopes: dict[asyncio.Task[Any], list[tuple[Held, anyio.CancelScope]]] = {}

    @property
    def locked(self) -> bool:
        """Whether a task of this process holds the lock in this mode."""
        return self._core.locked(self._mode)

    async def acquire(self) -> None:
        """Wait for the lock; at once if the running task holds it.

        Raises:
            RuntimeError: the task is a reader and asks for the writer's lock, or runs
                in another event loop than that of ``locks``.
            LockLost: the task held the lock, and has lost it.
            LockError: the store failed.
        """
        await self._core.acquire(self._mode)

    def release(self) -> None:
        """Release the lock; the request is sent, and its reply not waited for.

        Raises:
            RuntimeError: the running task does not hold the lock in this mode, or runs
                in another event loop.
            LockLost: it was lost meanwhile.
        """
        held = self._core.leave(self._mode)
        if held is not None:
            state = state_of(held)
            lost = state.lease.expired()
            state.give_back()
            if lost:
                raise state.error()

    def __enter__(self) -> NoReturn:
        raise RuntimeError('"async with" should be used as context manager expression')

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> None:
        await self.acquire()
        held = self._core.held()
        scope = anyio.CancelScope()
        scope.__enter__()
        state_of(held).watch(scope)
        self._scopes.setdefault(self._core.task(), []).append((held, scope))

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        task = self._core.task()
        held, scope = self._scopes[task].pop()
        if not self._scopes[task]:
            del self._scopes[task]
        state = state_of(held)
        state.unwatch(scope)

        async def release(*, quietly: bool) -> None:
            if self._core.leave(self._mode) is not None:
                await state.leave(quietly=quietly)
            elif not quietly:
                state.check()

        await end_body(scope, release, *exc_info)

    def __repr__(self) -> str:
        status = "locked" if self.locked else "unlocked"
        return f"<{type(self).__name__.lstrip('_')}: [{status}]>"


class _ReaderLock(_Side):
    _mode = Mode.READ


class _WriterLock(_Side):
    _mode = Mode.WRITE


class RWLock:
    """A readers-writer lock of many processes, used like ``aiorwlock.RWLock``."""

    def __init__(
        self,
        *,
        fast: bool = False,
        locks: Locks | None = None,
        name: tuple[str, ResourceId] | None = None,
    ) -> None:
        """Make a lock; no I/O.

        Args:
            fast: has no meaning here: other tasks run during each request.
            locks: made by ``aiorwlock_remote.connect``; it has to be given.
            name: type and id of the resource; it has to be given.

        Raises:
            ConfigurationError: ``locks`` or ``name`` is missing or not valid.
        """
        del fast
        if locks is None or name is None:
            raise ConfigurationError(
                what="a lock of many processes needs a store and a name",
                hint='RWLock(locks=locks, name=("catalog", 7))',
            )
        core = _Core(locks, name)
        self._reader_lock = _ReaderLock(core)
        self._writer_lock = _WriterLock(core)

    @property
    def reader(self) -> _ReaderLock:
        """The lock for readers, the shared side."""
        return self._reader_lock

    @property
    def writer(self) -> _WriterLock:
        """The lock for a writer, the exclusive side."""
        return self._writer_lock

    @property
    def reader_lock(self) -> _ReaderLock:
        """The same lock as ``reader``."""
        return self._reader_lock

    @property
    def writer_lock(self) -> _WriterLock:
        """The same lock as ``writer``."""
        return self._writer_lock

    def __repr__(self) -> str:
        return f"<RWLock: {self._reader_lock!r} {self._writer_lock!r}>"
