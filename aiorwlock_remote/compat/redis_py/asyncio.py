"""``Lock``, with the signature and the meaning of ``redis.asyncio.lock.Lock``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, ParamSpec, Self, TypeVar

from aiorwlock_remote.compat.redis_py.tokens import (
    TokenHolder,
    their_errors,
    token_text,
)
from aiorwlock_remote.sync.background import background

P = ParamSpec("P")
T = TypeVar("T")


class Lock(TokenHolder):
    """A lock of one Redis server, with the signature of redis-py's ``Lock``.

    It raises redis-py's ``LockError`` and ``LockNotOwnedError``, and its
    ``ConnectionError`` if the server cannot be reached. Tasks of asyncio may share it.
    """

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Wait for the lock; return whether it was obtained.

        Args:
            blocking: whether to wait; None: as given to the constructor.
            blocking_timeout: how many seconds to wait; None: likewise.
            token: the secret of the grant; None: a random one.
        """
        wait = self._wait(blocking, blocking_timeout)
        return await self._obtain(wait, token)

    async def do_acquire(self, token: str | bytes) -> bool:
        """Try to hold the lock under this token; return whether it does."""
        return await self._obtain(0.0, token)

    async def locked(self) -> bool:
        """Return whether any process holds the lock."""
        return await self._run(self._lock.owned, None)

    async def owned(self) -> bool:
        """Return whether this lock, in this thread, is held by its token."""
        token = self._token
        return token is not None and await self._run(
            self._lock.owned, token_text(token)
        )

    async def release(self) -> None:
        """Release the lock.

        Raises:
            LockError: this thread has not acquired it.
            LockNotOwnedError: its timeout is over, or it was deleted or taken.
        """
        token = self._owned_token("release")
        # Kept until the reply: a caller that is cancelled may release once more.
        try:
            await self.do_release(token)
        except self._their("LockNotOwnedError"):
            self.local.token = None
            raise
        self.local.token = None

    async def do_release(self, expected_token: str | bytes) -> None:
        """Release the grant of a token; ``LockNotOwnedError`` if there is none."""
        if not await self._run(self._lock.release, token_text(expected_token)):
            raise self._not_owned("release")

    async def extend(
        self, additional_time: float, replace_ttl: bool = False
    ) -> Literal[True]:
        """Let the lock live longer.

        Args:
            additional_time: seconds to be added to what is left of its life.
            replace_ttl: whether it lives for ``additional_time`` seconds from now
                instead, even if that is less than what is left.
        """
        self._owned_token("extend", needs_timeout=True)
        return await self.do_extend(additional_time, replace_ttl)

    async def do_extend(
        self, additional_time: float, replace_ttl: bool
    ) -> Literal[True]:
        """Extend the grant of this thread's token."""
        token = self._owned_token("extend")
        seconds, add = additional_time, not replace_ttl
        if not await self._run(self._lock.extend, token, seconds, add=add):
            raise self._not_owned("extend")
        return True

    async def reacquire(self) -> Literal[True]:
        """Let the lock live for ``timeout`` seconds from now."""
        self._owned_token("reacquire", needs_timeout=True)
        return await self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        """Renew the grant of this thread's token."""
        token, seconds = self._owned_token("reacquire"), self.timeout or 0.0
        if not await self._run(self._lock.extend, token, seconds, add=False):
            raise self._not_owned("reacquire")
        return True

    async def _obtain(self, wait: float | None, token: str | bytes | None) -> bool:
        wanted = None if token is None else token_text(token)
        obtained = await self._run(
            self._lock.acquire, self.timeout or None, wait, wanted
        )
        if obtained is None:
            return False
        self.local.token = obtained.take().encode()
        return True

    async def _run(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with their_errors(self._lock.library):
            return await background().run_from_loop(function, *args, **kwargs)

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_obtained()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._release_errors():
            await self.release()
