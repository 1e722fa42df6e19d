"""pytest plugin: puts our ``RWLock`` in the place of aiorwlock's.

Their tests make locks without a name and a store: here each gets a name of its own, and
the store of the test's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import aiorwlock
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.compat.aiorwlock import RWLock

opened: list[Locks] = []
names = count()


def made(*, fast: bool = False) -> RWLock:
    name = "theirs", f"{os.getpid()}-{next(names)}"
    return RWLock(fast=fast, locks=opened[-1], name=name)


aiorwlock.RWLock = made  # type: ignore[misc, assignment]


@pytest.fixture(autouse=True)
def store(event_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    async def opening() -> Locks:
        return await connect(os.environ["LOCKS_URL"])

    locks = event_loop.run_until_complete(opening())
    opened.append(locks)
    yield
    opened.remove(locks)
    event_loop.run_until_complete(locks.aclose())


@pytest.fixture
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The fixture that pytest-asyncio had until version 0.26."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run each of their async tests in the event loop of its fixtures."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames
    }
    loop = pyfuncitem.funcargs["event_loop"]
    assert isinstance(loop, asyncio.AbstractEventLoop)
    loop.run_until_complete(pyfuncitem.obj(**given))
    return True
