"""Watches: the cluster reports changes to this client, over one stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from random import random

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client
from aiorwlock_remote.backends.etcd.grpc_connection import Stream
from aiorwlock_remote.cas import DriverLoop
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import Resource, log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.etcd")

RETRY_INTERVAL, IDLE_RETRY_INTERVAL = 0.2, 2.0
"""Seconds to the next attempt, a random half more or less, after a stream has ended;
the second while no resource is watched.
"""
PROGRESS_INTERVAL = 1.0
"""Seconds of silence after which the server is asked whether the stream lives."""
MAX_UNANSWERED = 2
"""If so many requests for a sign of life are not answered, the stream is ended."""


class Watches:
    """The watched resources of a client, and its notices (None), over one stream.

    Its methods run in the driver's loop.

    A watch begins with the present: when the server has confirmed it, the resource is
    to be read. So no change is missed, and after a break no old revision is asked for,
    which may be compacted.

    While a resource is watched, and nothing comes, the server is asked for a sign of
    life each second: one message for all resources, where reads would be one for each.

    Called in the caller's loop: ``changed(resource, response)`` with each message about
    a resource; ``works(False)`` when changes may be missed from now on, ``works(True)``
    when a watch is confirmed.
    """

    def __init__(
        self,
        client: Client,
        loop: DriverLoop,
        client_id: str,
        changed: Callable[[Resource | None, messages.WatchResponse], object],
        works: Callable[[bool], object],
    ) -> None:
        self._client = client
        self._loop = loop
        self._notices = client.options.notices_of(client_id)
        self._changed = changed
        self._works = works
        self._ids: dict[Resource | None, int] = {}
        self._watched: dict[int, Resource | None] = {}
        self._last_id = 0
        self._stream: Stream | None = None
        self._ended = asyncio.Event()
        self._heard = False
        self._runs = False

    async def add(self, resource: Resource | None) -> None:
        """Watch a resource from now on; None: the notices to this client."""
        self._last_id += 1
        self._ids[resource] = self._last_id
        self._watched[self._last_id] = resource
        if self._stream is not None:
            self._create(self._stream, self._last_id)
        elif not self._runs:
            self._runs = True
            self._loop.spawn(self._run)

    async def remove(self, resource: Resource) -> None:
        """End the watch of a resource; the stream stays open for the next one."""
        watch_id = self._ids.pop(resource, None)
        if watch_id is None:
            return
        del self._watched[watch_id]
        if self._stream is not None:
            self._stream.send(messages.watch_cancel(watch_id))

    def close(self) -> None:
        """End all watches, and the stream that has them."""
        self._ids.clear()
        self._watched.clear()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
        self._ended.set()

    async def _run(self) -> None:
        # Ends with the last watch, if there is no stream then.
        try:
            while self._watched:
                self._ended.clear()
                try:
                    stream = await self._client.stream(
                        messages.WATCH, self._take, self._end
                    )
                except BackendError as exc:
                    log_event(log, "watch_failed", logging.DEBUG, error=str(exc))
                    pause = RETRY_INTERVAL if self._waits() else IDLE_RETRY_INTERVAL
                    await asyncio.sleep(pause * (0.5 + random()))
                    continue
                self._stream = stream
                for watch_id in self._watched:
                    self._create(stream, watch_id)
                await self._end_of(stream)
                if self._watched:
                    await asyncio.sleep(RETRY_INTERVAL * random())
        finally:
            self._runs = False

    async def _end_of(self, stream: Stream) -> None:
        """Return when the stream has ended; end it if it has become silent."""
        unanswered = 0
        while not self._ended.is_set():
            self._heard = False
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_INTERVAL):
                    await self._ended.wait()
            if self._heard or not self._waits():
                unanswered = 0
            elif unanswered < MAX_UNANSWERED:
                unanswered += 1
                stream.send(messages.watch_progress())
            else:
                self._end(TimeoutError("no sign of life"))

    def _waits(self) -> bool:
        return any(resource is not None for resource in self._ids)

    def _create(self, stream: Stream, watch_id: int) -> None:
        resource = self._watched[watch_id]
        if resource is None:
            end = self._notices + b"\0"
            stream.send(messages.watch_create(watch_id, self._notices, end))
            return
        seat, _, claim = self._client.options.keys_of(resource)
        # One range has both keys, so that one message has what one step has changed.
        # Keys of other resources in between are few: the name of such a resource goes
        # on with a character that is before the comma.
        stream.send(messages.watch_create(watch_id, seat, claim + b"\0"))

    def _take(self, data: bytes) -> None:
        self._heard = True
        found = messages.parse_watch(data)
        # Also for fences: a claim by the state that a message brings may be the first
        # request for long.
        self._client.saw(found.revision)
        if found.watch_id not in self._watched:
            return
        resource = self._watched[found.watch_id]
        if found.cancelled:
            # Not by us: no right to read, or the server was too slow for it.
            log_event(log, "watch_cancelled", why=found.reason)
            self._end(None)
        elif found.created or found.changes:
            if found.created:
                self._loop.tell(self._works, True)  # noqa: FBT003 - a callback
            self._loop.tell(self._changed, resource, found)

    def _end(self, error: Exception | None) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.cancel()
        self._ended.set()
        if error is not None:
            log_event(log, "watch_lost", logging.INFO, error=str(error))
        self._loop.tell(self._works, False)  # noqa: FBT003
