"""Stores as ``connect`` opens them, without the runtime above."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from aiorwlock_remote.cas.driver.store import TableStore
from aiorwlock_remote.core.commands import Acquire, Claim
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.registry import find
from aiorwlock_remote.runtime.event_loop import current_event_loop

ORDER = resource("order", 42)
LEASE = micros(30)


@asynccontextmanager
async def opened(url: str, client_id: str = "") -> AsyncIterator[TableStore]:
    """A store that wakes nobody, closed in time afterwards."""
    settings = StoreSettings(client_id=client_id or secrets.token_hex(8))
    host = current_event_loop()
    address = parse(url)
    store = await find(address.scheme)(address, host, lambda *_: None, settings)
    assert isinstance(store, TableStore)
    try:
        yield store
    finally:
        with anyio.fail_after(30, shield=True):
            await store.aclose()


def acquire(ticket: str, mode: Mode = Mode.WRITE, lease: int | None = LEASE) -> Acquire:
    """One try."""
    return Acquire((Claim(ticket, lease),), mode)


def orders(count: int) -> list[Resource]:
    """So many names."""
    return [resource("order", number) for number in range(count)]
