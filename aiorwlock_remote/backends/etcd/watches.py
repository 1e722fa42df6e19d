"""Watches: the cluster reports changes to this client, over one stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import random

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client, Stream
from aiorwlock_remote.cas import DriverLoop
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.ports import Resource, log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.etcd")

RETRY_INTERVAL = 0.2
"""Seconds to the next attempt, a random half more or less, after a stream has ended."""


class Watches:
    """The watched resources of a client. Its methods run in the driver's loop.

    A watch begins with the present: when the server has confirmed it, the resource is
    to be read. So no change is missed, and after a break no old revision is asked for,
    which may be compacted.

    Called in the caller's loop: ``changed(resource, response)`` with each message about
    a resource; ``works(False)`` when changes may be missed from now on, ``works(True)``
    when a watch is confirmed.
    """

    def __init__(
        self,
        client: Client,
        loop: DriverLoop,
        changed: Callable[[Resource, messages.WatchResponse], object],
        works: Callable[[bool], object],
    ) -> None:
        self._client = client
        self._loop = loop
        self._changed = changed
        self._works = works
        self._ids: dict[Resource, int] = {}
        self._watched: dict[int, Resource] = {}
        self._last_id = 0
        self._stream: Stream | None = None
        self._ended = asyncio.Event()
        self._runs = False

    async def add(self, resource: Resource) -> None:
        """Watch a resource from now on."""
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
                    await asyncio.sleep(RETRY_INTERVAL * (0.5 + random()))
                    continue
                self._stream = stream
                for watch_id in self._watched:
                    self._create(stream, watch_id)
                await self._ended.wait()
                if self._watched:
                    await asyncio.sleep(RETRY_INTERVAL * random())
        finally:
            self._runs = False

    def _create(self, stream: Stream, watch_id: int) -> None:
        seat, _, claim = self._client.options.keys_of(self._watched[watch_id])
        # One range has both keys, so that one message has what one step has changed.
        # Keys of other resources in between are few: the name of such a resource goes
        # on with a character that is before the comma.
        stream.send(messages.watch_create(watch_id, seat, claim + b"\0"))

    def _take(self, data: bytes) -> None:
        found = messages.parse_watch(data)
        resource = self._watched.get(found.watch_id)
        if found.cancelled and resource is not None:
            # Not by us: no right to read, or the server was too slow for it.
            log_event(log, "watch_cancelled", why=found.reason)
            self._end(None)
        elif resource is not None and (found.created or found.changes):
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
