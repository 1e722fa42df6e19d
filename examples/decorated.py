"""Decorators: refunds of one order come one after the other, of others meanwhile.

    python examples/decorated.py

Start it several times: the processes wait for each other, order by order.
"""

from __future__ import annotations

import asyncio
import os

from aiorwlock_remote import connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")


async def main() -> None:
    """Refund four times, for two orders."""
    async with connect(LOCKS_URL) as locks:

        @locks.synchronized("order", "{order_id}", timeout=30)
        async def refund(order_id: int, amount: int) -> str:
            print(f"{os.getpid()}: order {order_id} begins", flush=True)
            await asyncio.sleep(0.05)
            print(f"{os.getpid()}: order {order_id} ends", flush=True)
            return f"{amount} of order {order_id}"

        calls = [refund(order, amount) for order in (1, 2) for amount in (5, 7)]
        print("refunded:", ", ".join(await asyncio.gather(*calls)))


if __name__ == "__main__":
    asyncio.run(main())
