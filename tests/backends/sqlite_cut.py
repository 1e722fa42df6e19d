"""A process that takes a lock a few times, and ends at once.

``python -m tests.backends.sqlite_cut URL CYCLES ends how``: writes each fence.
``ends``: ``held`` or ``released``. ``how``: ``well``; ``surprised``, who takes no
command for one that hands out a fence; ``careless``, who syncs nothing for that; or
``nowhere``, where boots have no names.
"""

from __future__ import annotations

import os
import signal
import sys
from unittest.mock import patch

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.backends.sqlite import sqlite_file, store
from aiorwlock_remote.embedded import boot_id


async def main(url: str, cycles: int, ends: str) -> None:
    """At the given write."""
    async with connect(url) as locks:
        for cycle in range(1, cycles + 1):
            async with locks.mutex("order", 1) as held:
                os.write(1, f"{held.fence}\n".encode())
                if ends == "held" and cycle == cycles:
                    os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    url, cycles, ends, how = sys.argv[1:]
    if how == "nowhere":
        patch.object(boot_id, "_boot_id", lambda: "").start()
    elif how != "well":
        patch.object(sqlite_file, "_makes_no_fence", lambda _: True).start()
    if how == "careless":
        patch.object(store, "refuse_unsynced_fence", lambda *_: None).start()
    anyio.run(main, url, int(cycles), ends)
