"""``min_replicas``: nobody is told of a grant that too few replicas have.

WAIT follows the script in the same write, over the same connection: it asks for what
that connection wrote, another one would not know of it. A repeated request that finds
its grant writes nothing, and the grant may have come over a connection that is lost, or
the script may have been sent on to another node of a cluster: then a key that lives for
a millisecond, which replicas get like any write, goes before another WAIT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.slots import key_in_same_slot
from aiorwlock_remote.backends.redis.connection.calls import Call, as_is
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
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

T = TypeVar("T")

Undo = Callable[[tuple[str, ...]], object]
"""Takes these tickets back, whatever became of them."""


@dataclass(frozen=True, slots=True)
class UnackedGrant(Generic[T]):
    """Something is granted, and nobody is told of it before replicas have it.

    ``instead(error)`` takes it back; what is told then. ``old``: it may have come over
    a connection that is lost.
    """

    instead: Callable[[BaseException], T | BaseException]
    old: bool = False


def may_grant(command: Command) -> bool:
    """Whether its answer can be a grant: a release needs no replica."""
    if isinstance(command, Release):
        return bool(command.then)
    return isinstance(command, Acquire | Upgrade | Downgrade | Adopt)


class ReplicaAcks:
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
        return self.confirm(call, partial(_doubt, undo))

    def confirm(
        self, call: Call[T], doubt: Callable[[T], UnackedGrant[T] | None]
    ) -> Pending[T]:
        """The same for any answer; ``doubt`` finds what is granted in it, if anything.

        What is told instead comes from there; it fails with a ``BackendError`` that
        does.
        """
        told: Pending[T] = Pending()
        wait = self._wait()
        key = cast("bytes", call.args[2])  # not the seat: what is beside it is ours
        call.add_done_callback(partial(self._answered, key, told, wait, doubt))
        self._link.send(call, wait)
        return told

    def _wait(self) -> Call[int]:
        return Call(int, ("WAIT", self._needed, self._milliseconds))

    def _answered(
        self,
        key: bytes,
        told: Pending[T],
        wait: Call[int],
        doubt: Callable[[T], UnackedGrant[T] | None],
        call: Pending[T],
    ) -> None:
        if call.error is not None:
            told.set_exception(call.error)
            return
        answer = call.result()
        doubted = doubt(answer)
        if doubted is None:
            told.set_result(answer)
            return
        if (
            doubted.old or wait.done()
        ):  # done: the script was forgotten, and ran after it
            wait = self._wait()
            mark: Call[Any] = Call(
                as_is, ("SET", key_in_same_slot(key, b".mark"), "", "PX", 1)
            )
            mark.add_done_callback(partial(_worthless, wait))
            if not self._link.send_at_once(key, mark, wait):
                wait.set_exception(BackendUnavailable(what=f"{self._where}: not sent"))
        wait.add_done_callback(partial(self._judged, told, answer, doubted))

    def _judged(
        self, told: Pending[T], answer: T, doubted: UnackedGrant[T], wait: Pending[int]
    ) -> None:
        error = wait.error
        if error is None:
            if wait.result() >= self._needed:
                told.set_result(answer)
                return
            error = self._too_few(wait.result())
        instead = doubted.instead(error)
        if isinstance(instead, BaseException):
            told.set_exception(instead)
        else:
            told.set_result(instead)

    def _too_few(self, count: int) -> BackendError:
        seconds = self._milliseconds / 1000
        return BackendUnavailable(
            what=f"{self._where}: {count} of {self._needed} replicas acknowledged the"
            f" grant within {seconds:g} s; it is given back",
            replicas=count,
        )


def _doubt(undo: Undo, reply: Reply) -> UnackedGrant[Reply] | None:
    answers = reply.then if isinstance(reply, Released) else (reply,)
    grants = [
        (grant.ticket, grant.since == answer.now)
        for answer in answers
        if isinstance(answer, Granted)
        for grant in answer.grants
    ]
    if not grants:
        return None
    fresh = tuple(ticket for ticket, new in grants if new)

    def instead(error: BaseException) -> Reply | BaseException:
        undo(fresh)
        if isinstance(reply, Released):
            then = tuple(_without_grant(answer) for answer in reply.then)
            return Released(reply.held, reply.reason, then)
        return error

    return UnackedGrant(instead, old=len(fresh) < len(grants))


def _worthless(wait: Call[int], mark: Pending[Any]) -> None:
    """Without the mark WAIT asks for nothing: the slot may have been given away."""
    if mark.error is not None and not wait.done():
        wait.set_exception(mark.error)


def _without_grant(answer: Answer) -> Answer:
    return Waiting(0, 0) if isinstance(answer, Granted) else answer
