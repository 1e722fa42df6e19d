"""``Board``: scans a store while its page is open, and sends all viewers changes."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import final

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import BackendUnavailable, LockError
from aiorwlock_remote.integrations._app_locks import on_stop_signal
from aiorwlock_remote.integrations.board.model import BoardModel
from aiorwlock_remote.locks.changes import StoreScanner, pause
from aiorwlock_remote.locks.info import LockInfo
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.runtime.event_loop import current_event_loop

log: logging.Logger = logging.getLogger("aiorwlock_remote.board")

MIN_INTERVAL = 0.2
MAX_VIEWERS = 200
LINGER = 5.0
"""Seconds for which the connection stays open after the last viewer left."""
KEEP_ALIVE = 15.0
"""Seconds after which a viewer gets a sign of life while the store is silent."""
RECONNECT_MS = 1500
CHUNK = 65_536
"""Bytes in the largest part of a message: what is buffered for a viewer at a time."""
SEND_TIMEOUT = 60.0
"""Seconds within which a viewer has to take a message; else the viewer is dropped."""
SNAPSHOT_LIFETIME = 10.0
"""Seconds for which newcomers share a first message, followed by what changed since."""


@final
class Board:
    """Looks at a store while there are viewers, and has messages for each of them.

    Invariants (test_board.py):

    - One scan at a time serves all viewers, and without a viewer there is none.
    - A viewer that reads slowly delays no other: no message is stored for a viewer,
      each is made from the newest state when the viewer is ready for it.
    - Viewers share the messages that are on their way to them, and each has a buffer of
      its own for one part only; a viewer that does not read is dropped
      (test_viewers_that_do_not_read_cost_no_message_each).
    - The board of any process ends a grant that another one shows: it scans the store
      itself (test_a_board_ends_what_another_one_shows).
    - After ``stop`` every stream of messages ends, and new ones end at once.
    """

    def __init__(self, store: StoreScanner, *, every: float = 1.0) -> None:
        """Look at nothing yet.

        Args:
            store: What is shown.
            every: Seconds from one scan to the next; 0.2 at least.
        """
        check_seconds("every", every, least=MIN_INTERVAL)
        self._store = store
        self._every = every
        self._model = BoardModel()
        self._instance = secrets.token_hex(4)
        self._viewers = 0
        self._task: BackgroundTask | None = None
        self._fresh = False
        # The message for each state known to viewers, of the last scan; and the first
        # message of newcomers, with its number and time.
        self._encoded: dict[int, bytes] = {}
        self._snapshot: tuple[int, bytes, float] | None = None
        # Model and cache are used in worker threads: 10,000 rows would keep the loop of
        # an application busy for too long.
        self._lock = anyio.Lock()
        self._published = anyio.Event()
        self.stopped: bool = False

    @property
    def viewers(self) -> int:
        return self._viewers

    @asynccontextmanager
    async def viewing(self) -> AsyncIterator[None]:
        """Keep the scans going inside of the block."""
        self._viewers += 1
        if self._task is None and not self.stopped:
            if self._viewers == 1:  # perhaps in another loop than before
                self._lock, self._published = anyio.Lock(), anyio.Event()
            self._task = BackgroundTask(current_event_loop(), self._run)
        # A reload of the page does not make the scans come more often.
        if self._task is not None and not self._fresh:
            self._task.wake()
        try:
            yield
        finally:
            self._viewers -= 1

    @asynccontextmanager
    async def stream(
        self, last_event_id: str = ""
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Context for a block that sends a viewer the ``messages`` that it is given.

        If the viewer does not take a message within ``SEND_TIMEOUT``, the block is
        cancelled and the context ends without an error.
        """
        with anyio.CancelScope() as scope:
            async with (
                self.viewing(),
                aclosing(self.messages(last_event_id, scope)) as messages,
            ):
                yield messages
        if scope.cancelled_caught:
            log_event(log, "board_viewer_dropped", seconds=SEND_TIMEOUT)

    async def messages(
        self, last_event_id: str = "", sending: anyio.CancelScope | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events for one viewer; only inside of ``viewing()``.

        Wrap the generator into ``contextlib.aclosing``, as the viewer may leave.

        Args:
            last_event_id: The id of the last event that this viewer received.
            sending: Its deadline is set while a message is being sent.
        """
        yield f"retry: {RECONNECT_MS}\n\n".encode()
        instance, _, number = last_event_id.partition("-")
        known = instance == self._instance and number.isascii() and number.isdigit()
        seq = int(number[:18]) if known else 0
        sending = sending or anyio.CancelScope()
        while not self.stopped:
            if self._fresh and seq != self._model.seq:
                seq, message = await self._message(seq)
                head = b"id: %s-%d\ndata: " % (self._instance.encode(), seq)
            else:
                head, message = b"event: alive\ndata: ", b"1"
                with anyio.move_on_after(KEEP_ALIVE) as scope:
                    await self._published.wait()
                if not scope.cancelled_caught:
                    continue
            sending.deadline = anyio.current_time() + SEND_TIMEOUT
            if len(message) <= CHUNK:
                yield b"%s%s\n\n" % (head, message)
            else:
                yield head
                for start in range(0, len(message), CHUNK):
                    yield message[start : start + CHUNK]
                    # A socket may take all parts at once: others have their turn.
                    await checkpoint()
                yield b"\n\n"
            sending.deadline = math.inf

    async def end_grant(
        self, key: str, holder: str, fence: str | None, reason: str
    ) -> bool:
        """End the grant of one holder, if it is still the one that a page shows.

        Only what this board lists can be ended, whatever a request names.

        Raises:
            BackendError: The store failed.
        """
        async with self.viewing():
            seen = await self._find(key, holder, fence)
            if seen is None:
                return False
            ended = await self._store.force_release(seen, reason)
            if self._task is not None:
                self._task.wake()
            return ended > 0

    async def _find(self, key: str, holder: str, fence: str | None) -> LockInfo | None:
        # The page may be that of another process, whose scan is newer than the last one
        # here. And the first scan published from now on may have begun before that.
        scans = 0
        while True:
            published = self._published
            if self.stopped:
                raise BackendUnavailable(what="the board is ending")
            if self._fresh:
                if self._model.trouble:
                    raise BackendUnavailable(what=self._model.trouble)
                async with self._lock:
                    seen = self._model.seen(key, holder, fence)
                if seen is not None or scans == 2:
                    return seen
            if self._task is not None:
                self._task.wake()
            await published.wait()
            scans += 1

    def stop(self) -> None:
        """End every stream of messages, and the scans."""
        self.stopped = True
        self._publish()
        if self._task is not None:
            self._task.stop()

    async def aclose(self) -> None:
        """Stop, and close the connection to the store."""
        self.stop()
        if self._task is not None:
            await self._task.wait_closed()

    # ------------------------------------------------------------------ scans

    async def _run(self) -> None:
        task = self._task
        assert task is not None
        try:
            with on_stop_signal(self.stop):
                await self._scan_while_viewed(task)
        finally:
            self._task, self._fresh = None, False
            self._encoded.clear()
            self._snapshot = None
            self._model.paused()
            with anyio.CancelScope(shield=True), suppress(LockError):
                await self._store.aclose()

    async def _scan_while_viewed(self, task: BackgroundTask) -> None:
        clock = current_event_loop().clock
        while True:
            if not self._viewers:
                self._fresh = False
                self._model.paused()
                await task.sleep_until(clock.now() + LINGER)
                if not self._viewers:
                    return
            began = clock.now()
            await self._scan(clock.now)
            ended = clock.now()
            await task.sleep_until(ended + pause(ended - began, self._every))

    async def _scan(self, now: Callable[[], float]) -> None:
        try:
            found = await self._store.scan()
        except Exception as exc:  # noqa: BLE001 - of a function of the user's, too
            if not self._model.trouble:
                bug = not isinstance(exc, LockError | OSError)
                log_event(log, "board_scan_failed", error=str(exc), exc_info=bug)
            with suppress(LockError):
                await self._store.aclose()
            async with self._lock:
                self._model.failed(str(exc), now())
                self._encoded.clear()
        else:
            async with self._lock:
                await to_thread.run_sync(self._model.answered, found, now())
                self._encoded.clear()
        self._fresh = True
        self._publish()

    def _publish(self) -> None:
        published, self._published = self._published, anyio.Event()
        published.set()

    async def _message(self, since: int) -> tuple[int, bytes]:
        """Return the message for a viewer that knows ``since``, and the next number."""
        async with self._lock:
            now = current_event_loop().clock.now()
            if not self._model.follows(since):
                if self._snapshot is None or not (
                    self._model.follows(self._snapshot[0])
                    and now < self._snapshot[2] + SNAPSHOT_LIFETIME
                ):
                    made = await to_thread.run_sync(self._model.encoded, 0, now)
                    self._snapshot = self._model.seq, made, now
                return self._snapshot[:2]
            if since not in self._encoded:
                made = await to_thread.run_sync(self._model.encoded, since, now)
                self._encoded[since] = made
            return self._model.seq, self._encoded[since]
