"""The body of an ``async with``: what runs under a grant, and is cancelled with it."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import final

from aiorwlock_remote.locks.acquirers import Acquirer
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.runtime.request import AcquireRequest


async def acquire_grant(
    session: Session,
    request: AcquireRequest,
    options: Options,
    source: Acquirer,
    *,
    owned_by_task: bool,
) -> HeldState:
    """A grant, waited for; cancelled, nothing is left behind."""
    followers = session.asked(request)
    try:
        await session.may_ask(request.resource)
        lease = await source.acquire(request)
    except BaseException as exc:
        followers.failed(exc)
        raise
    return HeldState(session, lease, options, followers, owned_by_task=owned_by_task)


@final
class HeldScope:
    """Of the running task, which owns the grant; from now on until it is ``left``.

    Losing the grant cancels it. It refers to ``held``: the user may not, and
    ``on_lost`` gets it.
    """

    __slots__ = ("_grip", "_scope", "held")

    def __init__(self, grip: HeldState) -> None:
        """It begins."""
        self._grip = grip
        self.held: Held = Held(grip)
        self._scope = grip.session.host.new_scope()
        self._scope.__enter__()
        if grip.options.on_lost == "raise":
            grip.loss.watch(self._scope)

    async def left(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """It has ended: release the newest grant that its own was moved to.

        Raises:
            LockLost: it was lost; in place of the cancellation that came of it.
        """
        grip, scope = self._grip.newest, self._scope
        if grip.session.forked:
            with suppress(RuntimeError):  # asyncio has no running loop in a child
                scope.__exit__(exc_type, exc, traceback)
            if exc is None:
                grip.session.check()
            return
        grip.loss.unwatch(scope)
        try:
            # True: the cancellation was ours, because the grant was lost.
            swallowed = scope.__exit__(exc_type, exc, traceback)
        except BaseException:  # what is left of a group without our cancellation
            grip.give_back()
            raise
        if exc is None or swallowed:
            await grip.leave()
        else:  # a wait that is cancelled would hide the body's own error
            grip.give_back()
        # Never True, and typed so: else every `return` in a body is one "missing".
        assert exc is None or not swallowed, "a lost grant raised when it was released"
