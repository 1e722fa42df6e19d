"""``rwlock exporter``: serves Prometheus what a store has held and waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click

from aiorwlock_remote.cli.options import number_option, store_option, store_url
from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.cli.signals import Interrupt
from aiorwlock_remote.cli.watch.command import FileScanner
from aiorwlock_remote.core.timing import check_seconds

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

T = TypeVar("T")

PORT = 9749
MIN_TIMEOUT = 0.1

_EPILOG = f"""\b
Metrics (the label type is that of the resource, never its id):
  rwlock_store_up               1 if the store could be listed; if 0, no other
  rwlock_store_listing_seconds  how long that took
  rwlock_store_held             grants that are held, by type and mode
  rwlock_store_waiting          tasks that wait, by type and mode
  rwlock_store_never_ending     grants that no lease ends, by type
  rwlock_store_left_behind      holders that look left behind and block others
  rwlock_store_ran_out          leases that ran out unnoticed, and block nobody
  rwlock_store_oldest_held_seconds   age of the oldest grant, by type
  rwlock_store_longest_wait_seconds  the longest wait, by type
There is no authentication: let --listen be an address that only Prometheus reaches.
Without --listen that is 127.0.0.1:{PORT}.
"""


def _address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        text = f"{value!r} is not HOST:PORT, for example 127.0.0.1:{PORT}"
        raise click.BadParameter(text, ctx, param)
    return host, int(port)


@click.command(short_help="Serve metrics of a store to Prometheus.", epilog=_EPILOG)
@store_option
@click.option(
    "--listen",
    default=f"127.0.0.1:{PORT}",
    show_default=True,
    metavar="HOST:PORT",
    callback=_address,
    help="Where Prometheus finds the metrics; [::1]:PORT for IPv6.",
)
@click.option(
    "--by",
    type=click.Choice(["type", "total"]),
    default="type",
    show_default=True,
    help="Count each type of resource for itself, or all together.",
)
@number_option("--cache", "Seconds for which one listing answers further scrapes.", 5.0)
@number_option(
    "--timeout", "Seconds after which a store that does not answer is down.", 5.0
)
def exporter(
    *, url: str | None, listen: tuple[str, int], by: str, cache: float, timeout: float
) -> int:
    """Serve Prometheus what a store has held and waited for, until SIGTERM or Ctrl-C.

    Each scrape lists the store once, as `rwlock ls` does, unless a listing younger
    than --cache can be used again. If the store is down or was not used yet,
    rwlock_store_up is 0, and the exporter goes on.
    """
    if find_spec("prometheus_client") is None:
        text = "prometheus_client is not installed; "
        raise click.UsageError(f"{text}pip install 'aiorwlock-remote[prometheus]'")
    check_seconds("--cache", cache, endless=False)
    check_seconds("--timeout", timeout, least=MIN_TIMEOUT, endless=False)
    return asyncio.run(_serve(store_url(url), listen, cache, timeout, by=by))


async def _serve(
    url: str, listen: tuple[str, int], cache: float, timeout: float, *, by: str
) -> int:
    # Imported here: `rwlock --help` imports all commands, also without the extra.
    from prometheus_client import (  # noqa: PLC0415
        CollectorRegistry,
        start_http_server,
    )

    from aiorwlock_remote.cli.store_metrics import (  # noqa: PLC0415
        StoreCollector,
        StoreFigures,
        StoreLister,
    )

    registry, loop = CollectorRegistry(), asyncio.get_running_loop()
    async with FileScanner(url) as scanner:
        lister = StoreLister(scanner.open, timeout, print_message, by_type=by == "type")

        def list_store() -> StoreFigures | None:
            return _in_loop(loop, lister.list_store())

        registry.register(StoreCollector(list_store, cache))
        host, port = listen
        server, thread = start_http_server(port, host, registry)
        try:
            async with Interrupt().ends_block():
                shown = f"[{host}]" if ":" in host else host
                click.echo(f"http://{shown}:{server.server_port}/metrics")
                await anyio.sleep_forever()
        finally:
            await asyncio.to_thread(_stop, server, thread)
    return 0


def _in_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop; wait for its result in this thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _stop(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()
