"""Oracle, as the differential test uses it.

For a long run: ``python -m tests.backends.oracle.differential 200000 [seed]`` with a
server at ``ORACLE_URL``, whose tables are there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import oracledb

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.oracle.driver import OracleDriver, OracleExecutor
from aiorwlock_remote.backends.oracle.options import Options, options_of
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.core.url import parse
from tests.cas.differential import compare


class OracleTables:
    """See ``Database``."""

    def __init__(self, options: Options, foreign: Any) -> None:  # noqa: ANN401 - a connection
        self._driver = OracleDriver(options)
        self._foreign = foreign

    def executor(self, side: DriverLoop) -> OracleExecutor:
        source = ConnectionPool(self._driver, 1)
        return OracleExecutor(side, source, self._driver)

    async def delete(self, table: str, kind: str, number: int) -> None:
        await self._foreign.execute(
            f"DELETE FROM {table} WHERE resource_type = :kind AND resource_id = :num",  # noqa: S608
            {"kind": kind, "num": number},
        )
        await self._foreign.commit()

    async def sit(self, kind: str, number: int, ticket: str) -> None:
        await self._foreign.execute(
            "INSERT INTO mutex_locks (resource_type, resource_id, ticket,"
            " acquired_at) VALUES (:kind, :num, :ticket,"
            " TIMESTAMP '2001-09-09 01:46:40.000500')",
            {"kind": kind, "num": number, "ticket": ticket},
        )
        await self._foreign.commit()


@asynccontextmanager
async def oracle(url: str) -> AsyncIterator[OracleTables]:
    """Our tables there."""
    options = options_of(parse(url))
    foreign = await oracledb.connect_async(
        user=options.username,
        password=options.password,
        host=options.host,
        port=options.port,
        service_name=options.service,
    )
    async with foreign:
        yield OracleTables(options, foreign)


async def history(commands: int, seed: int) -> Counter[str]:
    """One of a long run."""
    async with oracle(os.environ["ORACLE_URL"]) as tables:
        return await compare(tables, commands, seed)


def main() -> None:
    """A long run."""
    commands, seed = int(sys.argv[1]), int((*sys.argv, "1", "1")[2])
    seen = Counter[str]()
    while commands > 0:
        seen += asyncio.run(history(min(commands, 5_000), seed))
        commands, seed = commands - 5_000, seed + 1
    for what, count in sorted(seen.items()):
        print(f"{count:10} {what}")  # noqa: T201


if __name__ == "__main__":
    main()
