"""Record the live page as the picture docs/board.png: `python docs/record_board.py`.

Real locks in `memory://`, of clients that say they are several hosts; the page runs for
WARM_UP seconds and is then shown by Chromium, as the tests show it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from unittest import mock

import uvicorn
from anyio import to_thread

from aiorwlock_remote import Locks, connect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from aiorwlock_remote.integrations.board.asgi import asgi_app  # noqa: E402
from aiorwlock_remote.integrations.board.site import BoardSite  # noqa: E402
from tests.servers.chromium import Chromium  # noqa: E402

PORT = 8799
URL = "memory://board"
WARM_UP = 150.0
HOSTS = ("web-1", "web-2", "web-3", "batch-1", "db-2")
SHOWN = "catalogue/2026"


async def turns(
    enter: Callable[[], object], held: float, pause: float, begin: float
) -> None:
    """Hold a lock and leave it alone, again and again."""
    await asyncio.sleep(begin)
    while True:
        async with enter():  # type: ignore[attr-defined]
            await asyncio.sleep(held)
        await asyncio.sleep(pause)


def scene(hosts: dict[str, Locks]) -> list[Awaitable[None]]:
    """Return what the hosts do."""

    def mutex(
        host: str, name: tuple[str, int | str], reason: str
    ) -> Callable[[], object]:
        return lambda: hosts[host].mutex(*name).acquire(reason=reason)

    def read(host: str) -> Callable[[], object]:
        reader = hosts[host].rwlock("catalogue", 2026).reader
        return lambda: reader.acquire(reason="price query")

    def permit(host: str, what: str) -> Callable[[], object]:
        return lambda: hosts[host].semaphore("api", "stripe", 2).acquire(reason=what)

    writer = hosts["batch-1"].rwlock("catalogue", 2026).writer
    order, report = ("order", 42), ("report", 7)
    return [
        turns(mutex("batch-1", report, "nightly report"), 400, 1, 20),
        turns(mutex("web-2", report, "report for a customer"), 3, 1, 60),
        turns(lambda: writer.acquire(reason="new prices"), 12, 34, 12),
        *(
            turns(read(host), 15 + 5 * n, 4 + 3 * n, n)
            for n, host in enumerate(HOSTS[:3])
        ),
        *(
            turns(mutex(host, order, f"refund of item {n + 1}"), 9, 5, 4 * n)
            for n, host in enumerate(HOSTS[:3])
        ),
        *(
            turns(permit(host, "payout"), 14 + 3 * n, 3, 5 * n)
            for n, host in enumerate(HOSTS[:4])
        ),
        turns(mutex("batch-1", ("mail", "newsletter"), "send 1,200 mails"), 25, 15, 5),
        turns(mutex("web-1", ("invoice", "2026-1187"), "payment"), 4, 26, 3),
        turns(mutex("web-3", ("invoice", "2026-1190"), "payment"), 3, 700, 110),
    ]


async def main() -> None:
    """Play the scene, look at it for a while, and take the picture."""
    async with AsyncExitStack() as stack:
        hosts: dict[str, Locks] = {}
        for host in HOSTS:
            with mock.patch("socket.gethostname", return_value=host):
                hosts[host] = await stack.enter_async_context(connect(URL))
        await hosts["db-2"].acquire_mutex_lock("deploy", "db", "left-behind")
        site = BoardSite(connect(URL), title="redis://locks.example/0")
        config = uvicorn.Config(asgi_app(site), port=PORT, log_config=None)
        server = uvicorn.Server(config)
        tasks = [asyncio.ensure_future(work) for work in scene(hosts)]
        serving = asyncio.create_task(server.serve())
        async with site.board.viewing():
            await asyncio.sleep(WARM_UP)
            await to_thread.run_sync(picture)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await site.board.aclose()
        server.should_exit = True
        await serving


def picture() -> None:
    """Open the page with one resource chosen, and write docs/board.png."""
    with tempfile.TemporaryDirectory() as folder:
        browser = Chromium(Path(folder))
        with browser.page() as page:
            page.size(1280, 800)
            page.open(f"http://127.0.0.1:{PORT}/")
            row = f".row:has([title='{SHOWN}'])"
            page.until(f"document.querySelector({row!r})")
            page.click(row)
            page.until("document.querySelectorAll('#details .bar').length > 3")
            page.until("document.querySelectorAll('.log li').length > 5")
            page.picture(ROOT / "docs/board.png")
        browser.close()


if __name__ == "__main__":
    asyncio.run(main())
