"""A process that ends under trio, and does not close: a thread has the driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aiorwlock_remote import connect

LEAVE = """
import asyncio, sys, trio
from aiorwlock_remote import connect
from aiorwlock_remote.cas.driver.pool import ConnectionPool

entered, take = False, ConnectionPool.take

async def slowly(lines):
    if entered:
        await asyncio.sleep(0.03)  # the process could be gone by then
    return await take(lines)

ConnectionPool.take = slowly

async def main():
    global entered
    locks = await connect(sys.argv[1])
    async with locks.mutex("order", 1):
        entered = True
        sys.exit(4)

trio.run(main)
"""


@pytest.mark.asyncio
async def test_requests_sent_before_the_exit_are_carried_out(tables: str) -> None:
    done = subprocess.run(  # noqa: ASYNC221 - nothing else is to happen meanwhile
        [sys.executable, "-c", LEAVE, tables], check=False, timeout=60
    )
    assert done.returncode == 4
    async with connect(tables) as locks:
        assert not await locks.mutex("order", 1).locked()
