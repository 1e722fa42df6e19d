"""``min_replicas``: reports a grant only after enough replicas have acknowledged it.

A renewal as well: where a network was split, a former primary would renew for ever what
its successor has long given to others (``renewal_channels``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.cluster.slots import key_in_same_slot
from aiorwlock_remote.backends.redis.connection.protocol import Call, as_is
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    wait_for_replicas,
)
from aiorwlock_remote.backends.redis.connections import Endpoint
from aiorwlock_remote.backends.redis.errors import too_few_replicas
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Command,
    Downgrade,
    Granted,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Waiting,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.errors import BackendUnavailable

T = TypeVar("T")

Undo = Callable[[tuple[str, ...]], object]
"""Function that withdraws tickets, whether they hold grants or not."""


@dataclass(frozen=True, slots=True)
class UnackedGrant(Generic[T]):
    """A grant that must not be reported before replicas have acknowledged it.

    ``instead(error)`` gives the grant back, unless it is one that was renewed, and
    returns what to report instead. ``old``: the grant may have been made over a
    connection that is lost, which ``WAIT`` on the present connection does not cover.
    """

    instead: Callable[[BaseException], T | BaseException]
    old: bool = False


def may_grant(command: Command) -> bool:
    """Return True if ``command`` can grant or renew; a plain release cannot."""
    if isinstance(command, Release):
        return bool(command.then)
    return isinstance(command, Acquire | Renew | Upgrade | Downgrade | Adopt)


class ReplicaAcks:
    """Reports grants once enough replicas acknowledged them; gives the others back."""

    def __init__(
        self, endpoint: Endpoint, needed: int, seconds: float, where: str
    ) -> None:
        """Require ``needed`` replicas to acknowledge each grant within ``seconds``.

        ``where`` names the server in errors.
        """
        self._endpoint = endpoint
        self._needed = needed
        self._milliseconds = max(1, round(seconds * 1000))
        self._where = where

    def confirm(
        self, call: Call[T], unacked: Callable[[T], UnackedGrant[T] | None]
    ) -> Pending[T]:
        """Send a call; set its result once enough replicas have acknowledged the grant.

        ``unacked(result)`` returns the grant in the result, None if there is none.
        """
        result: Pending[T] = Pending()
        wait = self._wait()
        # Not the published key: a mark goes beside a key of ours.
        key = cast("bytes", call.args[2])
        call.add_done_callback(partial(self._answered, key, result, wait, unacked))
        # In one write, so that no other command of ours comes between the two
        # (test_script_and_wait_leave_in_one_write).
        self._endpoint.send(call, wait)
        return result

    def _wait(self) -> Call[int]:
        return wait_for_replicas(self._needed, self._milliseconds / 1000)

    def _answered(
        self,
        key: bytes,
        result: Pending[T],
        wait: Call[int],
        unacked: Callable[[T], UnackedGrant[T] | None],
        call: Pending[T],
    ) -> None:
        if call.error is not None:
            result.set_exception(call.error)
            return
        answer = call.result()
        grant = unacked(answer)
        if grant is None:
            result.set_result(answer)
            return
        # WAIT asks for what its own connection wrote before. That is not the grant if a
        # repeated request found it there and wrote nothing, if it came over a
        # connection that is lost, or if WAIT was answered first: the server had
        # forgotten the script, or the script was redirected to another node of a
        # cluster. Then a write of our own, a key that lives for a millisecond, goes
        # before another WAIT (test_an_earlier_grant_has_a_mark_of_its_own,
        # test_a_server_that_forgot_the_scripts).
        if grant.old or wait.done():
            wait = self._wait()
            mark_key = key_in_same_slot(key, b".mark")
            mark: Call[Any] = Call(as_is, ("SET", mark_key, "", "PX", 1))
            mark.add_done_callback(partial(_fail_without_mark, wait))
            if not self._endpoint.send_at_once(mark, wait):
                wait.set_exception(BackendUnavailable(what=f"{self._where}: not sent"))
        wait.add_done_callback(partial(self._judge, result, answer, grant))

    def _judge(
        self, result: Pending[T], answer: T, grant: UnackedGrant[T], wait: Pending[int]
    ) -> None:
        error = wait.error
        if error is None:
            seconds = self._milliseconds / 1000
            error = too_few_replicas(self._where, wait.result(), self._needed, seconds)
        if error is None:
            result.set_result(answer)
            return
        log_debug("grant_unacknowledged", server=self._where, error=error)
        instead = grant.instead(error)
        if isinstance(instead, BaseException):
            result.set_exception(instead)
        else:
            result.set_result(instead)


def unacked(undo: Undo, reply: Reply) -> UnackedGrant[Reply] | None:
    """Return the grants in a reply to a lock's command; None if there are none.

    If too few replicas acknowledge them, the request fails with ``BackendUnavailable``,
    and ``undo`` is called with the tickets of new grants. Older grants are left alone:
    a reply may have reported them. Grants that a release made to waiters are reported
    as ``Waiting``, so that the waiters ask again; the release itself needs no replica.
    """
    if isinstance(reply, Renewed):
        renewed = any(isinstance(outcome, Grant) for outcome in reply.outcomes)
        return UnackedGrant(lambda error: error) if renewed else None
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
            then = (Waiting(0, 0) if isinstance(a, Granted) else a for a in reply.then)
            return Released(reply.held, reply.reason, tuple(then))
        return error

    return UnackedGrant(instead, old=len(fresh) < len(grants))


def _fail_without_mark(wait: Call[int], mark: Pending[Any]) -> None:
    # Without the mark WAIT asks for nothing: the slot may have been given away
    # (test_without_its_mark_wait_says_nothing).
    if mark.error is not None and not wait.done():
        wait.set_exception(mark.error)
