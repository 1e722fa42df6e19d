"""Renewal channels: how the lease keeper's thread sends renewals to a server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from aiorwlock_remote._util.native import Event
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.redis.connection.connector import (
    REPLICATION,
    Connector,
    Dial,
    dial_url,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    FORMER_PRIMARY,
    Call,
    Plain,
    ProtocolHandler,
    Request,
    RespProtocol,
    Script,
    as_is,
)
from aiorwlock_remote.backends.redis.errors import (
    from_failure,
    not_sent,
    too_few_replicas,
)
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.backends.redis.sentinel import ATTEMPTS, PrimaryFinder
from aiorwlock_remote.core.commands import IllegalCommand
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.ports import Clock, EventLoop

if TYPE_CHECKING:
    import asyncio

    from aiorwlock_remote.backends.redis.promotion import ReplicaWatch

T = TypeVar("T")

CONFIRM_TIMEOUT = 0.5
"""Seconds for which a batch of renewals waits for the Sentinels, but at most a quarter
of the batch's own timeout."""


class RenewalChannel(Protocol):
    """Interface: runs batches of renewals in the lease keeper's thread."""

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """Run all scripts and return their raw replies, in order.

        An error reply is returned as an exception.

        Raises:
            BackendError: It is unknown which scripts were carried out. Raised after
                ``timeout`` seconds at the latest.
        """

    def give_up(self) -> None:
        """Make the present and all later batches fail soon. For use by any thread."""

    def close(self) -> None:
        """Close the connections that the channel opened."""


class ThreadLoopChannel(ProtocolHandler):
    """Renewal channel over a connection of its own, for one thread at a time.

    Whatever the user's event loop is, the connection belongs to a loop of asyncio,
    which the thread that renews runs during each batch. The channel connects at the
    first use, and again at the next use after any error.

    Invariants (test_thread_loop_channel.py, unless another file is named):

    * No batch takes longer than its timeout, and a server that is silent for
      ``command_timeout`` counts as lost: there may be time left to renew at the next
      primary (``test_a_silent_server_does_not_cost_the_whole_lease``).
    * What was sent is never sent again, except to a server that has forgotten the
      scripts (``test_a_lost_reply_is_not_repeated``).
    * A connection that the server closed between two batches is not used
      (``test_a_connection_that_was_closed_while_idle_is_not_used``).
    * After ``give_up``, in whichever thread and at whichever time, a batch fails at
      once (test_renewal_abort.py).
    """

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        dial: Dial = dial_url,
        finder: PrimaryFinder | None = None,
    ) -> None:
        """Prepare the channel, without any I/O.

        Args:
            options: The server, the credentials and the timeouts.
            loop: The event loop of the ``Locks``; only its clock is used.
            scripts: Loaded by the handshake.
            dial: Opens the transport; called in the channel's own loop.
            finder: Finds the primary, if Sentinels watch the server.
        """
        self._options = options
        self._clock = loop.clock
        self._connector = Connector(options, loop, scripts, self, dial, finder)
        self._runner: asyncio.Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._protocol: RespProtocol | None = None
        self._limit: anyio.CancelScope | None = None
        self._given_up = False

    def open(self, timeout: float) -> None:
        """Connect, unless there is a connection that the server has not closed.

        Raises:
            BackendError: The server cannot be reached, or cannot be used for locks.
            ConfigurationError: The database, certificates or primary cannot be used.
        """
        self._ensure_open(self._clock.now() + timeout)

    def run_many(self, batch: Sequence[Request | Plain], timeout: float) -> list[Any]:
        """Run all scripts in one write; return their raw replies or errors, in order.

        Scripts that the server forgot are loaded and run again.
        """
        deadline = self._clock.now() + timeout
        calls: list[Call[Any]] = [Call(as_is, args, script) for script, args in batch]
        if not calls:
            return []
        protocol = self._ensure_open(deadline)
        patience = min(self._options.command_timeout, self._left(deadline))
        self._run(self._exchange(protocol, calls), patience)
        # The last one alone decides: if the connection is lost, all later calls fail.
        # READONLY ends the connection, too: the next may lead to the new primary
        # (test_the_keeper_leaves_a_primary_that_became_a_replica).
        error = calls[-1].error
        if error is not None and not protocol.alive:
            raise error
        answers = [call.error or call.result() for call in calls]
        if self._options.min_replicas:
            self._check_replicas(protocol, calls, answers, deadline)
        return answers

    def _check_replicas(
        self,
        protocol: RespProtocol,
        calls: Sequence[Call[Any]],
        answers: list[Any],
        deadline: float,
    ) -> None:
        # Behind the answers, not beside the scripts: the server may have forgotten
        # those, and a WAIT before their repetition asks for nothing.
        check = _ReplicaCheck(self._options, self._left(deadline))
        self._run(self._exchange(protocol, [check.wait]), self._left(deadline))
        check.refuse(calls, answers)

    def give_up(self) -> None:
        self._given_up = True
        self.abort()

    def abort(self) -> None:
        """Make the present batch fail soon. For use by any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._abort)

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.run(self._drop())
            runner.close()

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        for call in unsent:
            call.failed(error)

    def _ensure_open(self, deadline: float) -> RespProtocol:
        protocol = self._protocol
        if protocol is not None:
            left = self._left(deadline)
            self._run(self._drop_if_closed(protocol), left)
            protocol = self._protocol
        return self._open(deadline) if protocol is None else protocol

    def _open(self, deadline: float) -> RespProtocol:
        timeout = self._options.connect_timeout
        # This thread may wait for the Sentinels. While it does, its loop stands still.
        search = min(self._left(deadline), timeout / ATTEMPTS)
        there, switches = self._connector.locate(search)
        if self._runner is None:
            # Not imported for the sake of trio before there is something to renew.
            from aiorwlock_remote.backends.redis.connection import asyncio_transport  # noqa: PLC0415

            self._runner = asyncio_transport.renewal_runner(self._options.where)
            self._loop = self._runner.get_loop()
        if self._options.sentinels is not None:
            timeout /= ATTEMPTS
        timeout = min(self._left(deadline), timeout)
        return self._run(self._connected(there, timeout, switches), timeout)

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock.now()
        if left <= 0 or self._given_up:
            raise from_failure(TimeoutError(), self._options.where)
        return left

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        assert self._runner is not None
        return self._runner.run(self._limited(work, seconds))

    async def _limited(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            with anyio.move_on_after(seconds) as self._limit:
                # It may have come when there was no loop yet, or no limit.
                if self._given_up:
                    self._limit.cancel()
                return await work
        except BaseException:
            await self._drop()
            raise
        finally:
            self._limit = None
        # The connection may be dead without any sign, and later batches would wait for
        # replies that never come (test_a_connection_without_answer_is_left).
        await self._drop()
        raise from_failure(TimeoutError(), self._options.where)

    def _abort(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        elif self._protocol is not None:
            # Between two steps of a batch, or behind its end.
            self._protocol.transport.abort()

    async def _connected(
        self, there: Options, timeout: float, switches: int
    ) -> RespProtocol:
        protocol = await self._connector.connect_to(there, (), timeout, switches)
        self._protocol = protocol
        return protocol

    async def _drop_if_closed(self, protocol: RespProtocol) -> None:
        from aiorwlock_remote.backends.redis.connection import asyncio_transport  # noqa: PLC0415

        if not await asyncio_transport.still_open(protocol):
            await self._drop()

    async def _exchange(
        self, protocol: RespProtocol, calls: Sequence[Call[Any]]
    ) -> None:
        if not protocol.alive:  # aborted since it was opened
            raise from_failure(None, self._options.where)
        protocol.send_all(calls)
        for call in calls:
            with suppress(BackendError, IllegalCommand):
                await call

    async def _drop(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            with anyio.CancelScope(shield=True):
                await protocol.transport.aclose()


class MainLoopChannel:
    """Renewal channel over the store's connection; fails while its loop is blocked.

    ``send_at_once`` is the method of that connection, and is called in ``loop``.
    """

    def __init__(
        self, options: Options, loop: EventLoop, send_at_once: Callable[..., bool]
    ) -> None:
        self._options = options
        self._where = options.where
        self._loop = loop
        self._send_at_once = send_at_once
        self._answered = Event()
        self._given_up = False

    def run_many(self, batch: Sequence[Request | Plain], timeout: float) -> list[Any]:
        if not batch:
            return []
        calls: list[Call[Any]] = [Call(as_is, args, script) for script, args in batch]
        needed = self._options.min_replicas
        check = _ReplicaCheck(self._options, timeout) if needed else None
        self._answered = answered = Event()
        left, given_up = len(calls), False

        def done(_: Pending[Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0 and check is not None and not check.wait.done():
                left = 1
                send(check.wait)
            elif left == 0:
                answered.set()

        def send(*calls: Call[Any]) -> None:
            # Never late: the grant may have been given up meanwhile, and would be
            # renewed for nothing (test_thread_loop_channel.py).
            if given_up or self._given_up:
                return
            for call in calls:
                call.add_done_callback(done)
            if not self._send_at_once(*calls):
                for call in calls:
                    call.failed(not_sent(self._where, "there is no connection"))

        self._loop.call_soon(send, *calls)
        # `give_up` may come before the wait, or end it.
        if self._given_up or not answered.wait(timeout) or self._given_up:
            given_up = True
            raise BackendUnavailable(
                what=f"{self._where}: not renewed in {timeout:.3g} s",
                hint="the event loop was busy, or the server did not answer",
            )
        answers = [call.error or call.result() for call in calls]
        if check is not None:
            check.refuse(calls, answers)
        return answers

    def give_up(self) -> None:
        self._given_up = True
        self._answered.set()

    def close(self) -> None: ...  # the connection belongs to the store


def wait_for_replicas(needed: int, seconds: float) -> Call[int]:
    """Return the call that asks how many replicas have what was written before it."""
    return Call(int, ("WAIT", needed, max(1, round(seconds * 1000))))


class _ReplicaCheck:
    """Whether enough replicas have what a batch has written: ``wait`` follows it."""

    def __init__(self, options: Options, left: float) -> None:
        self._options = options
        self._seconds = min(options.command_timeout / 4, left / 2)
        self.wait: Call[int] = wait_for_replicas(options.min_replicas, self._seconds)

    def refuse(self, calls: Sequence[Call[Any]], answers: list[Any]) -> None:
        """Replace the answers to scripts by an error, if too few have acknowledged."""
        where, needed = self._options.where, self._options.min_replicas
        error: BackendError | None
        if self.wait.error is not None:
            error = from_failure(self.wait.error, where)
        else:
            count = self.wait.result()
            error = too_few_replicas(where, count, needed, self._seconds)
        if error is None:
            return
        # Whatever the server says of a grant, its successor may say something else.
        for i, call in enumerate(calls):
            if call.script is not None and not isinstance(answers[i], Exception):
                answers[i] = copy(error)


class KeeperChannel:
    """The lease keeper's renewal channel to one server, or to Sentinels' primary.

    Invariants:

    * If ``own`` cannot connect, the store's connection (``fallback``) is used: a server
      that has reached its ``maxclients`` still answers its present clients
      (test_without_a_connection_for_the_keeper).
    * Sentinels are asked before each batch, so that a missed message about a failover
      costs little time. If the primary changes during a batch, the batch fails
      (test_primary_finder.py).
    * If a replica has left the primary and is a primary itself, a grant is renewed only
      if both have renewed it: the Sentinels have not said yet which of them counts
      (test_promotion.py).
    """

    def __init__(
        self,
        own: ThreadLoopChannel | None,
        fallback: MainLoopChannel,
        clock: Clock,
        finder: PrimaryFinder | None = None,
        watch: ReplicaWatch | None = None,
    ) -> None:
        """Wrap the two channels; ``own`` connects to the primary that ``finder`` knows.

        ``own=None``: the store's connection carries all renewals. ``watch``: None if
        replicas cannot be connected to.
        """
        self._own = own
        self._watch = watch
        self._fallback = fallback
        self._clock = clock
        self._finder = finder
        self._busy = False
        self._deadline = 0.0
        self._switches = 0
        if finder is not None:
            self._switches = finder.switches
            finder.on_switch(self._leave_former_primary)

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        deadline, finder = self._clock.now() + timeout, self._finder
        if finder is None:
            return self._run(batch, deadline)
        self._deadline, watch = deadline, self._watch
        finder.confirm(min(CONFIRM_TIMEOUT, timeout / 4))
        if self._switches != finder.switches:
            self._switches = finder.switches
            self.close()
        # From here on a switch aborts the batch: a former primary may not answer at
        # all.
        self._busy = True
        look: list[Plain] = [] if watch is None else [(None, REPLICATION)]
        try:
            replies = self._run([*batch, *look], deadline)
        finally:
            self._busy = False
        if self._switches != finder.switches:
            where = finder.sentinels.where
            raise BackendUnavailable(what=f"{where}: {FORMER_PRIMARY}")
        if watch is not None:
            watch.note(replies.pop())
        return replies

    def run_at_successor(self, batch: Sequence[Request]) -> list[Any] | None:
        """Run the last batch at a replica that is a primary now; None if none is.

        Within the time that the batch was given. The replies are those of ``run_many``,
        with its errors.
        """
        watch = self._watch
        if watch is None:
            return None
        successor = watch.successor(self._left(self._deadline))
        if successor is None:
            return None
        return successor.run_many(batch, self._left(self._deadline))

    def give_up(self) -> None:
        if self._watch is not None:
            self._watch.give_up()
        if self._own is not None:
            self._own.give_up()
        self._fallback.give_up()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._own is not None:
            self._own.close()

    def _run(self, batch: Sequence[Request | Plain], deadline: float) -> list[Any]:
        if self._own is not None:
            try:
                self._own.open(self._left(deadline))
            # ConfigurationError: the Sentinels may have forgotten the primary's name,
            # while the store's connection to it still works.
            except (BackendError, ConfigurationError) as exc:
                log_debug("renewal_fallback_used", error=exc)
                if self._left(deadline) <= 0:
                    raise
            else:
                return self._own.run_many(batch, self._left(deadline))
        return self._fallback.run_many(batch, self._left(deadline))

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.now())

    def _leave_former_primary(self) -> None:
        # Called in any thread. A batch that has not connected yet is left alone: it
        # goes to the new primary.
        finder, own = self._finder, self._own
        if self._busy and finder and own and self._switches != finder.switches:
            own.abort()
