"""Leader election: ``Leader`` stands by for a lock, leads under it, and hands over."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import TypeVar, cast, final

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote._util.threads import run_blocking
from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError, LockError, LockLost, NotOwner
from aiorwlock_remote.locks.acquisition import SingleEntry
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.info import LockInfo
from aiorwlock_remote.locks.lock import Mutex, OptionArgs
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import guarded
from aiorwlock_remote.recipes.outage import Outage, may_pass

T = TypeVar("T")

LEADER_TYPE = "leader"
"""The resource type of the locks of leaders: ``leader/scheduler``."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.leader")


@final
class BlockingCallback:
    """A callback that may block: called in a worker thread, and waited for."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __call__(self, _: Leader) -> object:
        return self._function()


@final
class Leader:
    """A candidate of a leader election; made by ``locks.leader``.

    ``async with`` it: in the background the candidate stands by until the lock is its
    own, leads for as long as the lock is held, and stands by again when the lock is
    lost. The body runs all the time, whether this process leads or not. Leaving the
    body hands over: the next candidate leads at once.

    An outage of the store, of any length, ends no candidate. All other errors
    (``Closed``, a missing table) cancel the body and are raised when it is left.

    Two processes can *believe* for a moment that they lead, if one of them was paused:
    what a leader writes should carry ``fence``, and be refused if that is too old.
    """

    def __init__(
        self,
        session: Session,
        lock: Mutex,
        on_elected: Callback | None,
        on_deposed: Callback | None,
    ) -> None:
        for name, given in (("on_elected", on_elected), ("on_deposed", on_deposed)):
            _check_callback(name, given)
        self._session = session
        self._lock = lock
        self._on_elected = on_elected
        self._on_deposed = on_deposed
        self._held: Held | None = None
        self._elected = anyio.Event()
        self._inside = SingleEntry("leader(…)")
        self._body: anyio.CancelScope | None = None
        self._candidacy = anyio.CancelScope()
        self._ended = anyio.Event()
        self._error: BaseException | None = None

    @property
    def name(self) -> str:
        """The name of the election."""
        return self._lock.resource.partition("/")[2]

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now; no I/O, for health checks.

        False as soon as the lease may have run out by the local clock, also if the
        store cannot be reached to say so.
        """
        held = self._held
        return held is not None and held.valid and not self._session.forked

    @property
    def fence(self) -> int | None:
        """The fencing number of this leader; None if this process does not lead.

        Each new leader has a higher one: hand it to what the leader writes to.
        """
        held = self._held
        return held.fence if held is not None and self.is_leader else None

    async def elected(self) -> Held:
        """Wait until this process leads; return its grant, with ``check``, ``guard``.

        If the caller is cancelled, this stays a candidate.

        Raises:
            NotOwner: the body of ``async with`` was left.
            LockError: what ended the candidate.
        """
        while not self._ended.is_set():
            await self._elected.wait()
            held = self._held
            if held is not None and held.valid:
                return held
            await anyio.sleep(0.01)  # lost just now: the candidate has to notice it
        raise self._error or NotOwner(resource=self._lock.resource, action="lead")

    async def info(self) -> LockInfo:
        """Return who leads and who stands by. Raises ``BackendError``."""
        return await self._lock.info()

    async def lead(self, work: Callable[[Held], Awaitable[T]]) -> T:
        """Run ``work(held)`` while this process leads; return what the work returned.

        Stand by until the lock of the election is free, then run the work. If the lock
        is lost, the work is cancelled, and the process stands by again: the work may be
        run several times. An outage of the store, of any length, is waited for. When
        the work returns or raises, or the caller is cancelled, the next candidate leads
        at once. Use either this or ``async with``, not both at once.

        Raises what the work raises, and the following.

        Raises:
            Closed: the ``Locks`` was closed.
            BackendError: the store refuses the lock for good: a missing table or right.
        """
        with self._inside:
            self._begin_candidacy()
            try:
                return await self._campaign(work)
            finally:
                self._end_candidacy()
                self._inside.left()

    async def _campaign(self, work: Callable[[Held], Awaitable[T]]) -> T:
        outage = Outage(log, "leader_waits_for_store", self._lock.resource)
        while True:
            held: Held | None = None
            results: list[T] = []
            try:
                # No timeout: a candidate waits for as long as another one leads.
                async with self._lock.acquire(reason="leading") as held:
                    outage.over()
                    try:
                        await self._begin(held)
                        results.append(await work(held))
                    finally:
                        await self._end()
            except (LockError, ExceptionGroup) as exc:
                # The work has ended: a release that failed is repeated by the library.
                if results:
                    return results[0]
                if held is None and isinstance(exc, LockError) and may_pass(exc):
                    await outage.pause(exc)
                elif held is None or not _is_loss(exc, held):
                    raise
            else:
                return results[0]

    async def _begin(self, held: Held) -> None:
        self._held = held
        self._elected.set()
        await self._tell("on_elected_failed", self._on_elected)

    async def _end(self) -> None:
        # Before the release is sent: what the callback stops must have stopped when
        # the next leader starts.
        self._held, self._elected = None, anyio.Event()
        await self._tell("on_deposed_failed", self._on_deposed)

    async def _tell(self, failed: str, callback: Callback | None) -> None:
        if isinstance(callback, BlockingCallback):
            # Shielded: a lost lock cancels the candidate, and what the callback stops
            # must have stopped when the candidate stands by again.
            with anyio.CancelScope(shield=True):
                await run_blocking(partial(guarded, log, failed, callback, self))
        elif callback is not None:
            guarded(log, failed, callback, self)

    async def __aenter__(self) -> Leader:
        with self._inside:
            self._session.check()
            self._begin_candidacy()
            self._body = body = self._session.loop.new_scope()
            body.__enter__()
            self._session.loop.spawn(self._stand_by)
        return self

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        body, self._body = self._body, None
        assert body is not None
        self._inside.left()
        if self._session.forked:
            # The candidate is the parent's. asyncio has no running loop in a child.
            with suppress(RuntimeError):
                body.__exit__(*exc_info)
            return
        self._candidacy.cancel()
        # Shielded: the end of a candidate sends requests, and waits for none of them.
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
        swallowed = body.__exit__(*exc_info)
        if self._error is not None and (exc_info[0] is None or swallowed):
            raise self._error

    async def _stand_by(self) -> None:
        try:
            with self._candidacy:
                await self._campaign(_for_ever)
        except Exception as exc:  # noqa: BLE001 - raised by the task that entered
            self._error = exc
            if self._body is not None:
                self._body.cancel()
        finally:
            self._end_candidacy()

    def _begin_candidacy(self) -> None:
        self._error = None
        self._candidacy = anyio.CancelScope()
        # Not those of the first candidacy: a task may wait already.
        if self._ended.is_set():
            self._elected, self._ended = anyio.Event(), anyio.Event()

    def _end_candidacy(self) -> None:
        self._ended.set()
        self._elected.set()  # wakes those who wait for it in vain

    def __repr__(self) -> str:
        state = f"leads, fence {self.fence}" if self.is_leader else "stands by"
        return f"<Leader {self.name!r} {state}>"


Callback = Callable[[Leader], object] | BlockingCallback


def _is_loss(error: BaseException, held: Held) -> bool:
    """Return True if ``error`` says that this grant was lost, and nothing else. Several
    tasks of the work may say so at once, in an exception group.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(_is_loss(one, held) for one in group.exceptions)
    if not isinstance(error, LockLost):
        return False
    return (error.resource, error.fence) == (held.resource, held.fence)


async def _for_ever(_: Held) -> None:
    await anyio.sleep_forever()


def _check_callback(name: str, given: object) -> None:
    if given is not None and not callable(given):
        raise ConfigurationError(what=f"{name}={quoted(given)} cannot be called")
    # Else a coroutine would be made at each election, and never run.
    if iscoroutinefunction(given):
        raise ConfigurationError(
            what=f"{name}={quoted(given)} would not be awaited",
            hint="a plain function, or what the work of leader.lead(…) does",
        )


def leader_lock(
    session: Session, name: ResourceId, defaults: Options, options: OptionArgs
) -> Mutex:
    """Return the lock of an election; ``ConfigurationError`` if an option is wrong."""
    if "on_lost" in options:
        raise ConfigurationError(
            what="on_lost is not an option of a leader", hint="on_deposed=…"
        )
    chosen = defaults.but({**options, "on_lost": "raise"})
    if chosen.lease is None:
        raise ConfigurationError(
            what="a leader has a lease", hint="without one, no other follows a dead one"
        )
    return Mutex(session, session.resource(LEADER_TYPE, name), chosen)
