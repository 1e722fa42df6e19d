"""A store that cannot hold a kind of lock says which ones can."""

from __future__ import annotations

import pytest

from aiorwlock_remote import Unsupported, connect

pytestmark = pytest.mark.anyio


async def test_the_error_names_stores_that_have_mutex_sets() -> None:
    async with connect("memory://") as locks:
        with pytest.raises(Unsupported, match="redis:// can"):
            locks.mutex_set("proxies")
        with pytest.raises(Unsupported, match="redis:// can"):
            locks.set_rwlock("order", 42)
        with pytest.raises(Unsupported, match="redis:// can"):
            locks.occupancy()
        with pytest.raises(Unsupported, match="sqlite://, postgresql://"):
            locks.row_lock("invoices", 1)
        with pytest.raises(
            Unsupported, match="postgresql://, mariadb:// and mysql:// have"
        ):
            async with locks.mutex("order", 42).in_transaction(object()):
                pass
