"""APScheduler: a nightly report that one of many processes sends.

    python examples/apscheduler_report.py

Start it several times, also on several machines with one ``LOCKS_URL``: each has its
own scheduler, and one of them sends the report of a night. ``EVERY`` is for a try: the
seconds between two attempts of each process, in place of once a night.
"""

from __future__ import annotations

import asyncio
import os

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from aiorwlock_remote import connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
EVERY = os.environ.get("EVERY")
NIGHT = 86400.0


async def send_report() -> None:
    """Send it. An error is logged by APScheduler, and not tried again this night."""
    await asyncio.sleep(0.1)
    print(f"{os.getpid()}: sent", flush=True)


async def main() -> None:
    """Schedule the report until the process is stopped."""
    async with connect(LOCKS_URL) as locks:
        once = locks.once("report", period=NIGHT)

        async def report() -> None:
            if not await once.run(send_report):
                print(f"{os.getpid()}: another process has it", flush=True)

        trigger = (
            IntervalTrigger(seconds=float(EVERY)) if EVERY else CronTrigger(hour=3)
        )
        scheduler = AsyncIOScheduler()
        scheduler.add_job(report, trigger)
        scheduler.start()
        try:
            await asyncio.Event().wait()
        finally:
            scheduler.shutdown(wait=False)


if __name__ == "__main__":
    asyncio.run(main())
