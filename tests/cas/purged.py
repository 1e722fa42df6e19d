"""Doormen that nobody uses any more, in a database: what its tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiorwlock_remote._util import purge
from aiorwlock_remote.cas.driver import store
from aiorwlock_remote.core.commands import Granted
from tests.backends.redis.connections import eventually
from tests.cas.open_stores import acquire, opened, orders

Left = Callable[[], list[int]]
"""The numbers of the orders whose rows there are, in order."""


def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step already begins with it, and nobody rests in between."""
    monkeypatch.setattr(store, "PURGE_EVERY", 1)
    monkeypatch.setattr(purge, "choice", min)
    monkeypatch.setattr(purge, "PAUSE_BETWEEN_REQUESTS", 0.001)


async def goes_by_keys(url: str, left: Left, use: Callable[[int], None]) -> None:
    """Portions of three of all there are: the orders 1 to 8, which are old."""
    async with opened(url) as store:
        assert isinstance(await store.step(orders(3)[2], acquire("t")), Granted)
        use(5)
        last = await store.forget(99)
        assert (last, left()) == (("order", 3), [2, 4, 5, 6, 7, 8])
        last = await store.forget(99, ("order", 3))
        assert (last, left()) == (("order", 6), [2, 5, 7, 8])
        last = await store.forget(99, ("order", 6))
        assert (last, left()) == (("order", 8), [2, 5])
        assert await store.forget(99, ("order", 8)) is None
        assert await store.forget(99, ("zebra", 0)) is None
        assert await store.forget(99) == ("order", 5)
        assert left() == [2, 5]


async def forgets_all(url: str, left: Left) -> None:
    """A step begins it; what it had to do before does not matter."""
    async with opened(url) as store:
        assert isinstance(await store.step(orders(1)[0], acquire("t")), Granted)
        await eventually(lambda: left() == [0], "all but the one in use")
