"""Measure and draw how often each of 20 clients has its turn: queue against polling.

`python -m docs.pictures.fair_queue measure [redis-server]` starts a Redis on loopback,
lets 20 clients want one lock for ten seconds, first with this library and then with
redis-py's lock, and writes fair-queue.json. Each client has a connection of its own, as
20 processes would, and asks again as soon as it has left. Without ``measure`` the
picture fair-queue.svg is drawn from that file.
"""

from __future__ import annotations

import asyncio
import json
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from redis.asyncio import Redis

from aiorwlock_remote import connect
from docs.pictures.svg import FOLDER, Picture

CLIENTS, SECONDS, HOLD = 20, 10.0, 0.005
DATA = FOLDER / "fair-queue.json"
Turn = Callable[[], Awaitable[None]]


async def count_turns(turns: list[Turn]) -> list[int]:
    """Let each client take turns for ``SECONDS``; return how many each had."""
    counts = [0] * len(turns)

    async def work(number: int) -> None:
        while True:
            await turns[number]()
            counts[number] += 1

    tasks = [asyncio.create_task(work(number)) for number in range(len(turns))]
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts


async def with_queue(url: str) -> list[int]:
    """Count the turns with this library, one ``Locks`` for each client."""
    clients = [await connect(url) for _ in range(CLIENTS)]

    def turn(number: int) -> Turn:
        lock = clients[number].mutex("fair", 1)

        async def take() -> None:
            async with lock:
                await asyncio.sleep(HOLD)

        return take

    counts = await count_turns([turn(number) for number in range(CLIENTS)])
    for client in clients:
        await client.aclose()
    return counts


async def with_polling(url: str) -> list[int]:
    """Count the turns with redis-py's lock, which asks every 0.1 s by default."""
    clients = [Redis.from_url(url) for _ in range(CLIENTS)]

    def turn(number: int) -> Turn:
        async def take() -> None:
            async with clients[number].lock("polled", timeout=30):
                await asyncio.sleep(HOLD)

        return take

    counts = await count_turns([turn(number) for number in range(CLIENTS)])
    for client in clients:
        await client.aclose()
    return counts


async def measure(url: str) -> dict[str, Any]:
    """Measure both; return the figures, and how they were made."""
    return {
        "made by": "python -m docs.pictures.fair_queue measure",
        "clients": CLIENTS,
        "seconds": SECONDS,
        "hold in seconds": HOLD,
        "python": platform.python_version(),
        "redis-py": version("redis"),
        "queue": sorted(await with_queue(url), reverse=True),
        "polling": sorted(await with_polling(url), reverse=True),
    }


def measure_on_loopback(program: str) -> dict[str, Any]:
    """Measure on a Redis that is started for it and ended after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        server = subprocess.Popen(  # noqa: S603 - a server of our own
            [*words, "--dir", folder], stdout=subprocess.DEVNULL
        )
        try:
            return asyncio.run(measure(f"redis://127.0.0.1:{port}/0"))
        finally:
            server.terminate()
            server.wait()


PANELS = (
    ("queue", "blue", "this library: a queue in the store"),
    ("polling", "orange", "redis-py's lock: each client asks every 0.1 s"),
)
LEFT, FULL, HEIGHT = 10, 420, 92
"""Left edge, width and height of a panel's bars."""


def picture(data: dict[str, Any]) -> Picture:
    """Draw one bar for each client, as high as its turns, in a panel for each lock."""
    drawn = Picture(
        "Turns of each of 20 clients: alike with a queue, by chance with polling", 318
    )
    highest = max(*data["queue"], *data["polling"])
    step = FULL / data["clients"]
    for number, (name, color, words) in enumerate(PANELS):
        top = 10 + number * 148
        counts = data[name]
        drawn.words(LEFT, top + 12, words, color, bold=True)
        found = f"most {max(counts)}, least {min(counts)}, in all {sum(counts)} turns"
        drawn.words(LEFT, top + 29, found, "dim")
        base = top + 36 + HEIGHT
        for place, count in enumerate(counts):
            height = max(1.0, round(HEIGHT * count / highest, 1))
            x = round(LEFT + place * step, 1)
            drawn.box(x, base - height, step - 4, height, color, radius=1)
        drawn.line((LEFT, base), (LEFT + FULL, base), color="line")
    told = f"{data['clients']} clients want one lock for {data['seconds']:g} s"
    drawn.words(
        LEFT,
        312,
        f"{told}, and hold it for {data['hold in seconds'] * 1000:g} ms",
        "dim",
    )
    return drawn


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        found = measure_on_loopback((*sys.argv[2:], "redis-server")[0])
        DATA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    picture(json.loads(DATA.read_text("utf-8"))).write("fair-queue.svg")
