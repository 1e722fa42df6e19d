"""A writer and a reader that are paused past their lease: what fences are for.

    python examples/paused.py

Each process holds its lock and is stopped in the middle, as a virtual machine or a
debugger may stop it. Meanwhile its lease runs out, and another process changes the
prices. When the first one goes on, its next check of the lock fails; but between a
check and the write there is always a gap. Only the rows can refuse a write that comes
too late: by their fence.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel

from aiorwlock_remote import LockLost, StaleFence, connect
from aiorwlock_remote.fencing.sql import FencedTable

PRICES = FencedTable("prices", key="name")


class Prices:
    """Two rows that belong together: the price with tax is a fifth higher.

    ``fenced``: the rows refuse old fences.
    """

    def __init__(self, path: Path, *, fenced: bool) -> None:
        self._path = path
        self._fenced = fenced

    def make(self) -> None:
        """Create the rows: 10, and 12 with tax."""
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute("CREATE TABLE prices (name PRIMARY KEY, price, fence NOT NULL)")
            db.execute("INSERT INTO prices VALUES ('net', 10, 0), ('gross', 12, 0)")

    def read(self, name: str, fence: int) -> int:
        """Return a price, under the grant with this fence."""
        with closing(sqlite3.connect(self._path)) as db, db:
            if self._fenced:
                (price,) = PRICES.read(db.cursor(), name, fence, ["price"])
            else:
                query = "SELECT price FROM prices WHERE name = ?"
                (price,) = db.execute(query, (name,)).fetchone()
            return int(price)

    def write(self, name: str, price: int, fence: int) -> None:
        """Set a price, under the grant with this fence."""
        with closing(sqlite3.connect(self._path)) as db, db:
            if self._fenced:
                PRICES.write(db.cursor(), name, fence, {"price": price})
            else:
                change = "UPDATE prices SET price = ? WHERE name = ?"
                db.execute(change, (price, name))


async def paused(role: str, locks_url: str, prices: Prices) -> None:
    """Hold the lock, stop in the middle, and go on as if nothing had happened."""
    async with connect(locks_url, lease=1) as locks:
        pair = locks.rwlock("prices", 1)
        held = await (pair.writer if role == "writer" else pair.reader).acquire()
        net = prices.read("net", held.fence)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            await held.guard(anyio.lowlevel.checkpoint())
        except LockLost as exc:
            print(f"  {role}: told at the next look: {exc.reason}")
        # As a process does that was stopped between its check and its write.
        try:
            if role == "writer":
                prices.write("net", net + 1, held.fence)
                print("  writer: wrote")
            else:
                print(f"  reader: {net}, {prices.read('gross', held.fence)} with tax")
        except StaleFence:
            print(f"  {role}: refused")


async def change(locks_url: str, prices: Prices) -> None:
    """Set the prices to 20, and 24 with tax, while the other process is stopped."""
    async with connect(locks_url) as locks, locks.rwlock("prices", 1).writer as held:
        prices.write("net", 20, held.fence)
        prices.write("gross", 24, held.fence)


def tell(role: str, folder: Path, *, fenced: bool) -> None:
    """Run one of the four cases in a new folder, and print the prices at its end."""
    print(f"{role}, {'with' if fenced else 'without'} fences", flush=True)
    url, path = f"sqlite:///{folder}/locks.db", folder / "shop.db"
    prices = Prices(path, fenced=fenced)
    prices.make()
    child = subprocess.Popen(  # noqa: S603 - this very file
        [sys.executable, __file__, role, url, str(path), str(int(fenced))]
    )
    try:
        os.waitpid(child.pid, os.WUNTRACED)  # returns when the child has stopped itself
        anyio.run(change, url, prices)
        child.send_signal(signal.SIGCONT)
        child.wait()
    finally:
        child.kill()
    with closing(sqlite3.connect(path)) as db:
        net, gross = (price for (price,) in db.execute("SELECT price FROM prices"))
    print(f"  the prices are {net}, {gross} with tax")


def main() -> None:
    """Run the four cases: a writer and a reader, without fences and with them."""
    for role in ("writer", "reader"):
        for fenced in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                tell(role, Path(folder), fenced=fenced)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        role, url, path, fenced = sys.argv[1:]
        anyio.run(paused, role, url, Prices(Path(path), fenced=fenced == "1"))
    else:
        main()
