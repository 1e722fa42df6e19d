"""``min_replicas``: nobody is told of a grant that too few replicas have.

WAIT follows the script in the same write, over the same connection: it asks for what
that connection wrote, another one would not know of it. A repeated request that finds
its grant writes nothing, and the grant may have come over a connection that is lost, or
the script may have been sent on to another node of a cluster: then a key that lives for
a millisecond, which replicas get like any write, goes before another WAIT.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from aiorwlock_remote.backends.redis.calls import Call, as_is
from aiorwlock_remote.backends.redis.lines import Endpoint
from aiorwlock_remote.backends.redis.slots import beside
from aiorwlock_remote.core.commands import (
    Acquire,
    Answer,
    Command,
    Downgrade,
    Granted,
    Release,
    Released,
    Reply,
    Upgrade,
    Waiting,
)
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.pending import Pending

Undo = Callable[[tuple[str, ...]], object]
"""Takes these tickets back, whatever became of them."""


def may_grant(command: Command) -> bool:
    """Whether its answer can be a grant: a release needs no replica."""
    if isinstance(command, Release):
        return bool(command.then)
    return isinstance(command, Acquire | Upgrade | Downgrade)


class Replicas:
    """Asks for grants, and gives back what fewer than ``needed`` replicas have."""

    def __init__(self, link: Endpoint, needed: int, seconds: float, where: str) -> None:
        """They have ``seconds`` to acknowledge each grant."""
        self._link = link
        self._needed = needed
        self._milliseconds = max(1, round(seconds * 1000))
        self._where = where

    def ask(self, call: Call[Reply], undo: Undo) -> Pending[Reply]:
        """Send the call and WAIT; the reply when enough replicas have what it grants.

        Too few: it fails with ``BackendUnavailable``, and a new grant is taken back
        with ``undo``. A grant that was there before is left to the caller, who does not
        know whether it was told of. Grants that a release carried along become places,
        so that their waiters ask again; the release itself needs no replica.
        """
        told: Pending[Reply] = Pending()
        wait = self._wait()
        key = cast("bytes", call.args[2])  # not the seat: what is beside it is ours
        call.then(partial(self._answered, key, told, wait, undo))
        self._link.send(call, wait)
        return told

    def _wait(self) -> Call[int]:
        return Call(int, ("WAIT", self._needed, self._milliseconds))

    def _answered(
        self,
        key: bytes,
        told: Pending[Reply],
        wait: Call[int],
        undo: Undo,
        call: Pending[Reply],
    ) -> None:
        if call.error is not None:
            told.fail(call.error)
            return
        reply = call.result()
        grants = _grants(reply)
        if not grants:
            told.resolve(reply)
            return
        fresh = tuple(
            g.ticket for one in grants for g in one.grants if g.since == one.now
        )
        old = len(fresh) < sum(len(one.grants) for one in grants)
        if old or wait.done:  # done: the server forgot the script, it ran after WAIT
            wait = self._wait()
            mark: Call[Any] = Call(as_is, ("SET", beside(key, b".mark"), "", "PX", 1))
            if not self._link.send_at_once(key, mark, wait):
                wait.fail(BackendUnavailable(what=f"{self._where}: not sent"))
        wait.then(partial(self._judged, told, reply, partial(undo, fresh)))

    def _judged(
        self,
        told: Pending[Reply],
        reply: Reply,
        undo: Callable[[], object],
        wait: Pending[int],
    ) -> None:
        error = wait.error
        if error is None and wait.result() >= self._needed:
            told.resolve(reply)
            return
        undo()
        if isinstance(reply, Released):
            then = tuple(_without_grant(answer) for answer in reply.then)
            told.resolve(Released(reply.held, reply.reason, then))
        else:
            told.fail(error or self._too_few(wait.result()))

    def _too_few(self, count: int) -> BackendError:
        seconds = self._milliseconds / 1000
        return BackendUnavailable(
            what=f"{self._where}: {count} of {self._needed} replicas acknowledged the"
            f" grant within {seconds:g} s; it is given back",
            replicas=count,
        )


def _grants(reply: Reply) -> tuple[Granted, ...]:
    answers = reply.then if isinstance(reply, Released) else (reply,)
    return tuple(a for a in answers if isinstance(a, Granted) and a.grants)


def _without_grant(answer: Answer) -> Answer:
    return Waiting(0, 0) if isinstance(answer, Granted) else answer
