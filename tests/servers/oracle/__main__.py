"""Starts the double: ``python -m tests.servers.oracle --postgresql … --control …``.

It says on standard output which port it listens on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from pathlib import Path

from tests.servers.oracle import pg
from tests.servers.oracle.control import ControlServer
from tests.servers.oracle.server import Server

_STARTS_IN = 60.0


async def serve(dsn: str, port: int, control: Path) -> None:
    server = Server(dsn)
    deadline = time.monotonic() + _STARTS_IN
    while True:
        try:
            await server.start(port)
            break
        except (OSError, pg.NotYet):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)  # PostgreSQL may still be starting
    await ControlServer(server).start(control)
    print(server.port, flush=True)  # noqa: T201 - to whoever started us
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgresql", required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, filename=given.log)
    asyncio.run(serve(given.postgresql, given.port, given.control))
