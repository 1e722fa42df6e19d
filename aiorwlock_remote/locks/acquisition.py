"""``lock.acquire()``: awaited, or entered by ``async with``; and ``adopt``."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, final

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.names import resource_under_prefix
from aiorwlock_remote.errors import ConfigurationError, LockTimeout, NotOwner
from aiorwlock_remote.locks import tickets
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import HeldState, Session
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime import conversion
from aiorwlock_remote.runtime.acquirer import Obtain, obtain_unless
from aiorwlock_remote.runtime.lease import AcquireRequest

H = TypeVar("H")


# The default arguments: at the end of the interpreter modules may be gone already.
def _warn_unused(
    name: str, source: object, warn: Callable[..., None] = warnings.warn
) -> None:
    done = "nothing is done; await it, or enter it by async with"
    warn(f"{name} was never awaited: {done}", RuntimeWarning, source=source)


@final
class SingleEntry:
    """Guard of an object that only one ``async with`` at a time may enter.

    A second entry would overwrite the state of the first. Use ``with guard:`` around
    the code of ``__aenter__``: it raises ``ConfigurationError`` if the object is
    entered already. The object then counts as entered until ``left()`` is called, or
    until the code in the ``with`` block fails.

    A guard made with ``unused`` warns with ``RuntimeWarning`` if the guarded object is
    dropped before it was entered or awaited, as Python does for coroutines.
    """

    __slots__ = ("_entered", "_unused", "_what")

    def __init__(self, what: str, unused: Callable[[], str] | None = None) -> None:
        """Make the guard of an object that is not entered yet.

        Args:
            what: how the object is made, for error messages: ``"acquire()"``.
            unused: returns the name of the object for the warning "… was never awaited"
                and is called only for it; None: do not warn.
        """
        self._what = what
        self._unused = unused
        self._entered = False

    def used(self) -> None:
        """Note that the object is awaited, so that no warning is needed."""
        self._unused = None

    def __enter__(self) -> None:
        if self._entered:
            raise ConfigurationError(
                what=f"this {self._what} is entered already",
                hint=f"a new {self._what} for each block",
            )
        self._entered = True
        self._unused = None

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        exc = exc_info[1]
        if exc is not None:
            self.left()

    def left(self) -> None:
        self._entered = False

    def __del__(self, warn: Callable[..., None] = _warn_unused) -> None:
        if self._unused is not None:
            warn(self._unused(), self)


class BaseAcquisition(Coroutine[Any, Any, H]):
    """Base of one attempt to get a grant, which is awaited or entered; used once.

    A subclass says how the attempt is made: ``_get`` for a grant that lives as long as
    the program refers to it, ``_enter`` for one that lives as long as the block (the
    same, unless it is overridden), and ``_leave`` at the end of the block. ``_what`` is
    how the object is made, ``_name`` also says for which resource, for the warning "…
    was never awaited".
    """

    _what: str
    # Of the class until they change: each acquire makes such an object.
    _used = False
    _inside: SingleEntry | None = None
    _held: H | None = None
    _running: Coroutine[Any, Any, H] | None = None

    def __await__(self) -> Generator[Any, Any, H]:
        self._used = True
        return self._get().__await__()

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - as coroutines have it
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as coroutines have it
        return self._started().throw(*error)

    def close(self) -> None:
        """Close the coroutine; unless it has returned a ``Held``, no grant remains."""
        self._started().close()

    async def __aenter__(self) -> H:
        self._used = True
        if self._inside is None:
            self._inside = SingleEntry(self._what)
        with self._inside:
            self._held = held = await self._enter()
        return held

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        assert self._held is not None
        assert self._inside is not None
        held, self._held = self._held, None
        self._inside.left()
        await self._leave(held, *exc_info)

    def __del__(self, warn: Callable[..., None] = _warn_unused) -> None:
        if not self._used:
            warn(self._name(), self)

    def _name(self) -> str:
        return self._what

    def _started(self) -> Coroutine[Any, Any, H]:
        self._used = True
        if self._running is None:
            self._running = self._get()
        return self._running

    @abstractmethod
    async def _get(self) -> H: ...

    async def _enter(self) -> H:
        return await self._get()

    @abstractmethod
    async def _leave(self, held: H, *exc_info: *ExcInfo) -> None: ...


@final
class Acquisition(BaseAcquisition[Held]):
    """One attempt to get a lock, made by ``lock.acquire()``; used once.

    ``await`` it for a ``Held``, whose grant lives as long as the program refers to it;
    give it to ``asyncio.create_task`` or ``wait_for``, as it is a coroutine; or enter
    it with ``async with``. Then the grant belongs to the entering task, losing the
    grant cancels the body and raises ``LockLost``, and leaving releases the grant, or
    the grant that replaced it (``upgrade``, ``downgrade``).

    If the caller is cancelled while it waits, no grant and no queue entry remain. In a
    forked child process leaving releases nothing: the grant is the parent's.
    """

    _what = "acquire()"

    def __init__(
        self,
        session: Session,
        request: AcquireRequest,
        options: Options,
        obtain: Obtain | None = None,
    ) -> None:
        self._session = session
        self._obtain: Obtain = session.acquirer.acquire if obtain is None else obtain
        self._options = options
        self._request = request

    def unless(self, over: Callable[[], Awaitable[object]]) -> Acquisition:
        """Let this attempt fail with ``AcquireAbandoned`` when ``over()`` returns.

        The attempt then holds nothing. ``over()`` is awaited during the wait for the
        lock, and cancelled when that wait ends. Return this object. Example: a web
        framework lets ``over`` return when the HTTP client closes its connection.
        """
        self._obtain = partial(obtain_unless, self._obtain, self._session.client, over)
        return self

    async def _get(self) -> Held:
        state = await self._session.acquire(
            self._request, self._options, self._obtain, owned_by_task=False
        )
        return Held(state)

    async def _enter(self) -> Held:
        state = await self._session.acquire(
            self._request, self._options, self._obtain, owned_by_task=True
        )
        held = Held(state)
        state.enter()
        return held

    async def _leave(self, held: Held, *exc_info: *ExcInfo) -> None:
        await state_of(held).exit(*exc_info)

    def _name(self) -> str:
        return f"acquire() of {self._request.resource.label}"

    def __repr__(self) -> str:
        return f"<Acquisition {self._request.resource.label} {self._request.mode}>"


@contextmanager
def one_timeout(
    clock: Clock, timeout: float | None
) -> Generator[Callable[[], float | None], None, None]:
    """Let several locks be acquired within one ``timeout``, in seconds.

    Yield a function that returns how much of the time is left; None if there is no
    limit. A ``LockTimeout`` of the block names the whole timeout, although each lock
    waited for what was left.
    """
    until = None if timeout is None else clock.now() + timeout
    try:
        yield lambda: None if until is None else max(0.0, until - clock.now())
    except LockTimeout as exc:
        exc.timeout = timeout or 0.0
        raise


async def adopt(
    session: Session, options: Options, ticket: str, *, lease: float | None = None
) -> Held:
    """Take over the grant of a ticket, as ``Locks.adopt`` describes; return its
    ``Held``. ``options``: the defaults; ``lease``: None: that of the ticket.
    """
    session.check()
    passed = tickets.read(ticket)
    target = resource_under_prefix(passed.resource, session.prefix) or passed.resource
    options = options.but(
        {
            "lease": passed.lease if lease is None else lease,
            "lock_delay": passed.lock_delay,
        }
    )
    request = AcquireRequest(
        target,
        passed.mode,
        options.admission,
        options.terms,
        reason=passed.reason,
        lock_delay=passed.lock_delay,
    )
    obtain = conversion.share if passed.shared else conversion.adopt
    with session.asked(request) as followers:
        found = await obtain(session.client, passed.ticket, request)
        if found is None:
            raise NotOwner(resource=target.label, action="adopt")
        session.check()  # the ``Locks`` may have been closed meanwhile
    state = HeldState(
        session, found, options, followers, session.task(), owned_by_task=False
    )
    state.shared = passed.shared
    return Held(state)
