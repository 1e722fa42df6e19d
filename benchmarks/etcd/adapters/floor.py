"""What any lock on etcd pays for, by the client that the library has.

There is no lease, no queue, no fence and no retry.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from aiorwlock_remote.backends.etcd import messages
from aiorwlock_remote.backends.etcd.client import Client as EtcdClient
from aiorwlock_remote.backends.etcd.options import options_of
from aiorwlock_remote.core.url import parse
from benchmarks.harness.lock import Client, Cycle

PASSED = b"passed by "


class _Key:
    """One key, stored if it is absent."""

    def __init__(self, client: EtcdClient, key: str) -> None:
        self._client = client
        self._key = f"/floor/{key}".encode()
        self._ticket = secrets.token_hex(16).encode()

    async def _insert(self) -> bool:
        put = messages.put_operation(messages.put(self._key, self._ticket))
        return await self._carry_out([messages.compare(self._key, 0)], put)

    async def _carry_out(self, conditions: list[bytes], operation: bytes) -> bool:
        request = messages.transaction(conditions, [operation], [])
        answer = await self._client.call(
            messages.TXN, request, messages.parse_transaction
        )
        return answer.succeeded


class _Floor(_Key):
    """The lock of one task that has no competitor."""

    async def __aenter__(self) -> None:
        assert await self._insert(), "the floor is for one task to a key"

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert await self._carry_out([], messages.delete_operation(self._key))


class _Token(_Key):
    """A token that two tasks pass to each other: whoever hears of it has it."""

    def __init__(self, client: EtcdClient, key: str) -> None:
        super().__init__(client, key)
        self._passed: asyncio.Queue[bytes] = asyncio.Queue()
        self._asked = False

    async def __aenter__(self) -> None:
        asked, self._asked = self._asked, True
        if not asked and await self._insert():
            return
        while await self._passed.get() == PASSED + self._ticket:
            pass  # our own message

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        put = messages.put(self._key, PASSED + self._ticket)
        assert await self._carry_out([], messages.put_operation(put))

    async def watch(self) -> None:
        """Hear from now on of what is passed."""
        created = asyncio.Event()

        def take(data: bytes) -> None:
            found = messages.parse_watch(data)
            if found.created:
                created.set()
            for change in found.changes:
                found_now = change.found
                # Who was the first to store the key has passed nothing.
                if found_now is not None and found_now.content.startswith(PASSED):
                    self._passed.put_nowait(found_now.content)

        stream = await self._client.stream(messages.WATCH, take, lambda _: None)
        stream.send(messages.watch_create(1, self._key, self._key + b"\0"))
        await created.wait()


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(options_of(parse(url)), None)
    await client.open(10.0)
    try:
        yield client
    finally:
        client.close()


class _Floors:
    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Floor(self._client, key)


class _Tokens:
    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        token = _Token(self._client, key)
        await token.watch()
        return token


@asynccontextmanager
async def floor(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the bare transactions: insert and delete."""
    del lease
    async with _opened(url) as client:
        yield _Floors(client)


@asynccontextmanager
async def message(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the token of two tasks."""
    del lease
    async with _opened(url) as client:
        yield _Tokens(client)
