"""A server for ``kvstore.py``, in memory: ``python kvstore_server.py [port]``.

A request and its answer are one line of JSON each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable


class Server:
    """Texts by key, each with the revision at which it was stored."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[int, str]] = {}
        self.revision = 0

    def get(self, key: str) -> object:
        return self.keys.get(key, (0, None))

    def swap(self, key: str, revision: int, text: str) -> object:
        found, stored = self.keys.get(key, (0, None))
        if found != revision:
            return False, found, stored
        self.revision += 1
        self.keys[key] = self.revision, text
        return True, self.revision, None

    def range(self, after: str, limit: int) -> object:
        keys = sorted(key for key in self.keys if key > after)
        return [(key, *self.keys[key]) for key in keys[:limit]]

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection until the client closes it."""
        answers: dict[str, Callable[..., object]] = {
            "get": self.get,
            "swap": self.swap,
            "range": self.range,
        }
        try:
            while line := await reader.readline():
                name, *values = json.loads(line)
                writer.write(json.dumps(answers[name](*values)).encode() + b"\n")
                await writer.drain()
        except OSError:  # the client has gone
            pass
        finally:
            writer.close()


async def main(port: int, server: Server) -> None:
    """Print the port, and listen there until the process ends; port 0: any free one."""
    listening = await asyncio.start_server(
        server.serve, "127.0.0.1", port, limit=1 << 24
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7171, Server()))
