"""A worker in a container: SIGTERM ends it in order, and its lock is free at once.

python examples/worker.py
"""

import asyncio
import os
import signal

from aiorwlock_remote import connect

URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")


async def main() -> None:
    """Hold one lock after the other, until SIGTERM cancels this task."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with connect(URL) as locks:
        while True:
            async with locks.mutex("job", "import").acquire(reason="import"):
                print("importing", flush=True)
                await asyncio.sleep(60)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        print("ended in order")
