"""A worker's words with the one who started it: lines of JSON."""

from __future__ import annotations

import json
import sys

from anyio import to_thread


def say(**words: object) -> None:
    """A line out."""
    print(json.dumps(words), flush=True)


async def hear() -> str:
    """A line in, without blocking the loop."""
    line: str = await to_thread.run_sync(sys.stdin.readline)
    return line.strip()
