"""trio: tasks that share a catalog: many readers or one writer at a time.

    python examples/trio_task.py

The locks are in a file, so several such programs, or one on asyncio, could take part.
"""

from __future__ import annotations

import os

import trio

from aiorwlock_remote import RWLock, connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")

catalog = {"price": 10, "with_tax": 12}


async def reader(name: str, rw: RWLock) -> None:
    """Read both prices; without the lock a writer between them would mix the pair."""
    async with rw.reader as held:
        price = catalog["price"]
        await trio.sleep(0.05)
        with_tax = catalog["with_tax"]
        print(f"{name} reads {price} and {with_tax} in phase {held.fence}")


async def writer(name: str, rw: RWLock) -> None:
    """Change both prices, then go on as a reader."""
    async with rw.writer.acquire(timeout=10, reason="new prices") as held:
        catalog["price"] += 10
        await trio.sleep(0.05)
        catalog["with_tax"] = catalog["price"] * 12 // 10
        print(f"{name} writes {catalog['price']} in phase {held.fence}")
        # Without a gap: no other writer changes the prices before this task reads them.
        await held.downgrade()
        print(f"{name} reads {catalog['price']} and lets readers in")


async def main() -> None:
    """Start six readers and two writers at once."""
    async with connect(LOCKS_URL) as locks, trio.open_nursery() as nursery:
        rw = locks.rwlock("catalog", 7)
        for n in range(3):
            nursery.start_soon(reader, f"reader {n}", rw)
        nursery.start_soon(writer, "writer A", rw)
        for n in range(3, 6):
            nursery.start_soon(reader, f"reader {n}", rw)
        nursery.start_soon(writer, "writer B", rw)
    print(f"done: {catalog}")


if __name__ == "__main__":
    trio.run(main)
