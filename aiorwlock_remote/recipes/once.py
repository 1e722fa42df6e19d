"""``Once``: a job that one machine of many runs, at most once in a period.

A job has two locks, so that the store's clock alone decides, and no clock of a machine.
``once/report`` is held, and renewed, while the job runs. ``once-period/report`` is the
mark of a period: a grant that is detached as soon as it is made, lives for the rest of
the period whatever becomes of its process, and is never renewed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypedDict, TypeVar, final

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.commands import Command, Release, Renew
from aiorwlock_remote.core.names import Resource, ResourceId
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendUnavailable,
    ConfigurationError,
    LockError,
    LockTimeout,
    NotOwner,
)
from aiorwlock_remote.locks import tickets
from aiorwlock_remote.locks.acquisition import Acquisition, SingleEntry, adopt
from aiorwlock_remote.locks.decorators import check_async
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.lock import Mutex
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.outage import Outage, may_pass

_PLAIN: dict[str, object] = {
    "on_lost": "raise",
    "margin": None,
    "max_hold": None,
    "max_stall": None,
    "max_waiters": None,
    "lock_delay": 0.0,
}
"""Options of both locks: none that would end a grant early, or keep it for longer."""

P = ParamSpec("P")
T = TypeVar("T")

ONCE_TYPE = "once"
"""The resource type of the locks that are held while jobs run: ``once/report``."""
PERIOD_SUFFIX = "-period"
"""What the type of a mark adds to that of its lock: ``once-period/report``."""
MARKED = "has begun in this period"
"""The reason of a mark, for people who look at it."""
EARLY_FRACTION = 0.1
"""How early a run may come by default, as a part of the period."""
SHORTEST_LEASE = 10.0
"""Seconds of a lease of a running job whose ``at_most`` is not given, if the period is
not shorter; else a third of the period, if that is longer."""
RECORD_TIMEOUT = 5.0
"""Seconds for which a cancelled job waits for the store to note that it has ended."""

NOTHING: Command = Renew(())
"""A request that changes nothing; its reply comes after those of earlier requests."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.once")


class OnceArgs(TypedDict, total=False):
    """How often a job may run. Times are in seconds, and count from its start.

    Attributes:
        period: after a start no other one is made for so long, less ``early``: the
            interval of the schedule.
        at_least: for so long no machine starts the job again, whatever becomes of it;
            0 by default, else at least 0.2. ``period`` or ``at_least`` has to be given.
        at_most: how long after its last renewal the lock of a machine that has died
            stays, before another machine may run the job again in the same period;
            None, the default: no machine runs it again in that period (with
            ``retry=True``: after a third of the period).
        retry: whether a job that raised, or was cancelled, may be run again in the
            same period, by the next call on any machine; False by default.
        early: a run may come so much before the end of the period, so that a run that
            began late does not suppress the next one; a tenth of the period by default.
        patience: for how long an outage of the store is waited for before the start;
            60 by default.
    """

    period: float | None
    at_least: float
    at_most: float | None
    retry: bool
    early: float | None
    patience: float


@dataclass(frozen=True, slots=True)
class OnceTerms:
    """Value object: the checked ``OnceArgs``, and what follows from them. Seconds.

    Attributes:
        kept: how long the mark of a period lives.
        at_least: how long the mark lives that is set before the job runs; 0: there is
            none while it runs.
        lease: that of the lock that is held while the job runs.
        recorded: whether the end of a job is recorded by a mark for the period, because
            the first mark does not live so long.
    """

    kept: float
    at_least: float
    lease: float
    recorded: bool
    retry: bool
    patience: float


def once_terms(given: OnceArgs) -> OnceTerms:
    """Check ``OnceArgs``; raise ``ConfigurationError`` if they are not valid."""
    unknown = set(given) - set(OnceArgs.__annotations__)
    if unknown:
        raise ConfigurationError(
            what=f"unknown option {min(unknown)!r} of once()",
            hint=", ".join(OnceArgs.__annotations__),
        )
    period, early = given.get("period"), given.get("early")
    at_least, at_most = given.get("at_least", 0.0), given.get("at_most")
    patience, retry = given.get("patience", 60.0), given.get("retry", False)
    check_seconds("period", period, least=MIN_LEASE)
    check_seconds("early", early)
    if at_least != 0:  # a mark cannot be shorter, and must not be longer than said
        check_seconds("at_least", at_least, least=MIN_LEASE, endless=False)
    check_seconds("at_most", at_most, least=MIN_LEASE)
    check_seconds("patience", patience, endless=False)
    given_retry: object = retry
    if not isinstance(given_retry, bool):
        raise ConfigurationError(what=f"retry={retry!r} is not True or False")
    if period is None and not at_least:
        raise ConfigurationError(
            what="once() needs a period, or at_least", hint="period=86400: once a day"
        )
    if at_most is not None and at_most < at_least:
        raise ConfigurationError(
            what=f"at_most={at_most:g} is less than at_least={at_least:g}"
        )
    if early is None:
        early = EARLY_FRACTION * (period or 0.0)
    kept = max(at_least, (period or 0.0) - early)
    if kept < MIN_LEASE:
        raise ConfigurationError(
            what=f"early={early:g} leaves too little of the period"
        )
    recorded = retry or at_most is not None
    lease = max(kept / 3, min(kept, SHORTEST_LEASE)) if at_most is None else at_most
    if not recorded:
        at_least = kept
    return OnceTerms(kept, at_least, lease, recorded, retry, patience)


@final
class PeriodMark:
    """The mark that a job runs, or has run, in a period; set by a holder of its lock.

    Invariants (tests/recipes/test_once.py):

    - A mark is detached in the turn of the event loop that obtains it: closing the
      ``Locks``, or the end of the process, does not end it.
    - Unless ``recorded``, the first mark lives for the period, and nothing has to be
      sent when the job ends: no outage or cancellation can undo it.
    - ``begin`` that does not return True has ended when no mark of its own is left, as
      far as the store can be reached. So the process that holds the lock of the job,
      and finds a mark, finds that of a run: a store may carry out requests for two
      resources in any order, and a mark that is withdrawn after the lock of the job was
      released would keep the next machine from a run that never was
      (test_a_cancelled_start_of_which_the_mark_is_late).
    - Without ``at_least`` there is no mark while the job runs: with ``retry`` the next
      call may run it as soon as it has failed (test_a_retry_may_follow_at_once).
    """

    def __init__(
        self, session: Session, target: Resource, defaults: Options, terms: OnceTerms
    ) -> None:
        """``target``: the resource of the mark; ``defaults``: those of ``connect``."""
        self._session = session
        self._options = defaults.but(_PLAIN)
        self._lock = Mutex(session, target, self._options)
        self._target = target
        self._terms = terms
        self._ticket = ""
        # Whether a mark of ours may exist whose ticket we do not know.
        self._uncertain = False

    async def begin(self) -> bool:
        """Return whether the job may run now; if so, set the first mark.

        The caller holds the lock of the job, and may release it if this fails or is
        cancelled: no mark remains.
        """
        terms = self._terms
        # Shorter than the lock of the job: if this process dies in between, its mark
        # keeps no process from a job that may be run again.
        lease = terms.at_least or max(MIN_LEASE, min(terms.lease / 2, SHORTEST_LEASE))
        try:
            held = await self._in_outages(
                partial(self._lock.acquire, reason=MARKED, lease=lease)
            )
            if held is None:
                return False
            self._ticket = held.detach()
            if not terms.at_least:
                await self._in_outages(lambda _: self._take_out())
                self._ticket = ""
        except GeneratorExit:  # the loop has ended: nothing can be awaited
            raise
        except BaseException:
            await settle(self._session, self._target, self._taking_out())
            raise
        return True

    async def _in_outages(self, ask: Callable[[float], Awaitable[T]]) -> T | None:
        resource = self._lock.resource
        return await obtain_in_outages(self._session, resource, self._terms, ask)

    async def _take_out(self) -> None:
        await self._session.client.request(self._target, self._taking_out())

    def _taking_out(self) -> Command:
        """Return the request after which no mark of ours is left."""
        if self._ticket:
            return Release(tickets.read(self._ticket).ticket)
        return NOTHING  # what was sent before has withdrawn it

    async def end(self, running: Held, *, failed: bool) -> None:
        """Record the end of the job, if the first mark does not live long enough.

        While the store is out of reach, repeat that as long as ``running`` is held. A
        cancelled caller tries once, for ``RECORD_TIMEOUT`` seconds at most.

        Args:
            running: the grant under which the job ran.
            failed: whether the job raised or was cancelled.

        Raises:
            LockLost: ``running`` was lost.
            LockError: the store refused the mark.
        """
        terms = self._terms
        if not terms.recorded or (failed and terms.retry) or running.lost is not None:
            return
        outage = Outage(log, "once_waits_for_store", self._lock.resource)
        try:
            while not await self._recorded(running, outage):
                pass
        except BaseException as exc:
            # The job may be run again in this period.
            resource = self._lock.resource
            log_event(log, "once_not_recorded", resource=resource, error=str(exc))
            raise

    async def _recorded(self, running: Held, outage: Outage) -> bool:
        running.check()
        now, since = self._session.loop.clock.now(), state_of(running).lease.since
        rest = self._terms.kept - (now - since)
        if rest < MIN_LEASE:
            return True
        try:
            # Shielded: a request that is cancelled would be withdrawn.
            with anyio.move_on_after(RECORD_TIMEOUT, shield=True):
                await self._record(rest)
                return True
        except LockTimeout:
            # The mark is another machine's, which has taken our lock for dead: the
            # release will tell. Or it is our own, of a reply that was lost, and will
            # be withdrawn.
            return not self._uncertain
        except LockError as exc:
            if not may_pass(exc):
                raise
            self._uncertain = self._uncertain or isinstance(exc, AcquireUncertain)
            await outage.pause(exc)
        else:  # not in time: the request has been withdrawn
            silent = f"the store did not answer in {RECORD_TIMEOUT:g} s"
            await outage.pause(BackendUnavailable(what=silent))
        return False

    async def _record(self, rest: float) -> None:
        held: Held | None = None
        if self._ticket:
            with suppress(NotOwner):  # it has ended, as the job took longer
                held = await adopt(
                    self._session, self._options, self._ticket, lease=rest
                )
            self._ticket = ""
        if held is None:
            wait = RECORD_TIMEOUT / 2 if self._uncertain else 0
            held = await self._lock.acquire(wait, reason=MARKED, lease=rest)
        held.detach()


async def settle(session: Session, target: Resource, request: Command) -> None:
    """Wait until the store has carried out what was sent for ``target``, and at last
    ``request``; ``RECORD_TIMEOUT`` seconds at most.

    A store carries out the requests for one resource in order, and those for two in any
    order. A caller that is cancelled waits as well, and is cancelled then.
    """
    if session.closed or session.forked:
        return
    settled = anyio.Event()

    async def ask() -> None:
        try:
            with suppress(LockError), anyio.move_on_after(RECORD_TIMEOUT):
                await session.client.request(target, request)
        finally:
            settled.set()

    # In a task of its own: ``Task.cancel`` of asyncio passes a shield.
    session.loop.spawn(ask)
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not settled.is_set():
            try:
                await settled.wait()
            except anyio.get_cancelled_exc_class() as exc:
                cancelled = exc
    if cancelled is not None:
        raise cancelled


async def obtain_in_outages(
    session: Session,
    resource: str,
    terms: OnceTerms,
    acquire: Callable[[float], Awaitable[T]],
) -> T | None:
    """Return what ``acquire(timeout)`` returns, or None if another task has the lock.

    An outage of the store is waited for, ``terms.patience`` seconds at most. The lock
    is not waited for; except after an attempt that may have been granted, as the lock
    is then ours until that attempt is withdrawn, and no sign that another machine runs.
    """
    outage = Outage(log, "once_waits_for_store", resource)
    until = session.loop.clock.now() + terms.patience
    uncertain = False
    while True:
        left = max(0.0, until - session.loop.clock.now())
        try:
            return await acquire(left if uncertain else 0.0)
        except LockTimeout:
            return None
        except LockError as exc:
            if not may_pass(exc) or left <= 0:
                raise
            uncertain = uncertain or isinstance(exc, AcquireUncertain)
            await outage.pause(exc)


@final
class Once:
    """A job that one machine of many runs, at most once in a period.

    Made by ``Locks.once``. Use it in one of three ways; each call or block asks anew
    whether the job may run:

    - ``async with once as mine``: ``mine`` is the ``Held`` of the running job, or None
      if another machine runs it, or it has run in this period;
    - ``await once.run(job)``;
    - as a decorator of an async function.
    """

    def __init__(
        self, session: Session, name: ResourceId, defaults: Options, terms: OnceTerms
    ) -> None:
        self._session = session
        self._name = name
        self._defaults = defaults
        self._terms = terms
        lease = defaults.but({**_PLAIN, "lease": terms.lease})
        self._lock = Mutex(session, session.resource(ONCE_TYPE, name), lease)
        self._target = session.resource(ONCE_TYPE + PERIOD_SUFFIX, name)
        self._inside = SingleEntry("once(…)")
        self._entered: tuple[Acquisition, Held, PeriodMark] | None = None

    async def run(self, job: Callable[[], Awaitable[object]]) -> bool:
        """Run ``job()`` unless it has run in this period, or another machine runs it.

        Return True if it ran here. See ``Locks.once`` for errors and cancellation.
        """
        async with self._anew() as mine:
            if mine is not None:
                await job()
        return mine is not None

    def __call__(
        self, function: Callable[P, Awaitable[object]]
    ) -> Callable[P, Coroutine[Any, Any, bool]]:
        """Decorate an async function: a call returns True if the function ran here."""
        check_async(function)

        @wraps(function)
        async def run_once(*args: P.args, **kwargs: P.kwargs) -> bool:
            return await self.run(lambda: function(*args, **kwargs))

        return run_once

    async def __aenter__(self) -> Held | None:
        with self._inside:
            entered = await obtain_in_outages(
                self._session, self._lock.resource, self._terms, self._enter
            )
            if entered is None:
                return None
            running, held = entered
            mark = PeriodMark(self._session, self._target, self._defaults, self._terms)
            try:
                mine = await mark.begin()
            except BaseException as exc:
                await self._leave(running, type(exc), exc, exc.__traceback__)
                raise
            if not mine:
                await self._leave(running, None, None, None)
                return None
            self._entered = running, held, mark
            return held

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        self._inside.left()
        entered, self._entered = self._entered, None
        if entered is None:
            return
        running, held, mark = entered
        failed = exc_info[0] is not None
        try:
            if not self._session.forked:
                await mark.end(held, failed=failed)
        except BaseException as error:
            # The job's own error comes first; but a cancellation is never swallowed.
            if not failed or not isinstance(error, Exception):
                await self._leave(running, type(error), error, error.__traceback__)
                raise
        await self._leave(running, *exc_info)

    async def _leave(self, running: Acquisition, *exc_info: *ExcInfo) -> None:
        """Release the lock of the job; return when the next call may have it."""
        try:
            await running.__aexit__(*exc_info)
        finally:
            # After an error no reply is awaited, and the next call, over another
            # connection, would find the lock taken: a retry that is refused in silence
            # (test_a_failed_run_ends_when_its_lock_is_free).
            if exc_info[1] is not None and not isinstance(exc_info[1], GeneratorExit):
                target = self._session.resource(ONCE_TYPE, self._name)
                await settle(self._session, target, NOTHING)

    async def _enter(self, timeout: float) -> tuple[Acquisition, Held]:
        running = self._lock.acquire(timeout, reason="runs")
        return running, await running.__aenter__()

    def _anew(self) -> Once:
        return Once(self._session, self._name, self._defaults, self._terms)

    def __repr__(self) -> str:
        return f"<Once {self._lock.resource!r}>"
