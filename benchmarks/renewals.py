"""``python -m benchmarks.renewals STORE…``: what does it take to renew many locks?

A process holds so many locks, and renews all of them several times, as many at a time
as the lease keeper does. The client's CPU time is that of the whole process, which does
nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.ports import Renewal, RenewerBase
from aiorwlock_remote.runtime.lease_keeper import MAX_BATCH
from benchmarks.waiting import STORES, children, cpu

LEASE = 3600
AT_ONCE = 64
"""Acquires under way at a time."""
HEAD = "store         held  round  renewals/s  client, µs each  server, µs each  failed"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line for each round, and return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.renewals")
    parser.add_argument("stores", nargs="+", choices=sorted(STORES))
    parser.add_argument("--held", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    print(HEAD)
    for store in options.stores:
        with (
            tempfile.TemporaryDirectory() as folder,
            STORES[store](Path(folder)) as url,
        ):
            asyncio.run(_measure(store, url, options.held, options.rounds))
    return 0


async def _measure(store: str, url: str, number: int, rounds: int) -> None:
    async with connect(url, lease=LEASE) as locks:
        held = await _acquire(locks, number)
        batch = [_renewal_of(one) for one in held]
        session: Any = locks._session  # noqa: SLF001 - not through the keeper's timing
        renewer: RenewerBase = session.client.store.renewer()
        servers, ours = children(os.getpid()), [os.getpid()]
        rates = list[float]()
        try:
            for turn in range(rounds):
                all_cpu, server, began = cpu(ours), cpu(servers), time.monotonic()
                failed = await asyncio.to_thread(_renew, renewer, batch)
                took = time.monotonic() - began
                server = cpu(servers) - server
                client = cpu(ours) - all_cpu - server
                rates.append(number / took)
                each = [f"{1e6 * used / number:15.0f}" for used in (client, server)]
                print(
                    f"{store:10} {number:7,} {turn + 1:6} {rates[-1]:11,.0f}"
                    f"  {'  '.join(each)} {failed:7}",
                    flush=True,
                )
        finally:
            renewer.close()
            for one in held:
                await one.release()
        print(f"{store:10} median: {statistics.median(rates):,.0f} renewals/s")


async def _acquire(locks: Locks, number: int) -> list[Held]:
    few = asyncio.Semaphore(AT_ONCE)

    async def acquire(number: int) -> Held:
        async with few:
            return await locks.mutex("bench", number).acquire()

    return await asyncio.gather(*map(acquire, range(number)))


def _renewal_of(held: Held) -> Renewal:
    lease = held._lease  # noqa: SLF001 - as above
    return Renewal(lease.resource, lease.ticket, LEASE * 1_000_000)


def _renew(renewer: RenewerBase, batch: Sequence[Renewal]) -> int:
    """Renew all; return how many failed."""
    failed = 0
    for begin in range(0, len(batch), MAX_BATCH):
        outcomes = renewer.renew(batch[begin : begin + MAX_BATCH], 60.0)
        failed += sum(isinstance(one, Exception) for one in outcomes)
    return failed


if __name__ == "__main__":
    sys.exit(main())
