"""``rwlock board``: serves a live page of a store's locks."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import click

from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.options import (
    every_option,
    number_option,
    store_option,
    store_url,
    type_argument,
)
from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.cli.signals import Interrupt
from aiorwlock_remote.cli.watch.command import MIN_INTERVAL, FileScanner
from aiorwlock_remote.core.text import plain
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.errors import ConfigurationError

if TYPE_CHECKING:
    from aiorwlock_remote.integrations.board.site import BoardSite

PORT = 8765
STOP_TIMEOUT = 3
"""Seconds for which open connections may go on after the signal to end."""


@click.command(
    short_help="Serve a live page: who holds, who waits.",
    epilog="\b\nThe page needs: pip install 'aiorwlock-remote[board]'",
)
@store_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on. ANY OTHER THAN LOOPBACK LETS OTHERS IN.",
)
@number_option(
    "--port",
    "The port to listen on; 0: one that is free.",
    PORT,
    metavar="N",
    kind=click.IntRange(0, 65_535),
)
@click.option(
    "--allow-break",
    is_flag=True,
    help="The page can end grants, as `rwlock break` does. ANYBODY WHO REACHES IT CAN.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which the page is reached, as behind a proxy; repeatable.",
)
@every_option
@type_argument
def board(
    *,
    url: str | None,
    host: str,
    port: int,
    allow_break: bool,
    hosts: tuple[str, ...],
    every: float,
    resource_type: str | None,
) -> int:
    """Serve a live page of what is held or waited for, until Ctrl-C.

    THE PAGE HAS NO LOGIN: anybody who can connect to it sees the names of all locks,
    hosts and reasons, and with --allow-break can end grants. It listens on this machine
    only unless --host says otherwise; for others, put it behind a proxy that asks for a
    password, or use an SSH tunnel.

    The page shows what `rwlock watch` shows, and a time line of each resource. The
    store is scanned only while a browser looks at the page: one scan at a time for all
    viewers, as `rwlock ls` does.
    """
    check_seconds("--every", every, least=MIN_INTERVAL)
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            what=f"{' and '.join(missing)} not installed",
            hint="pip install 'aiorwlock-remote[board]'",
        )
    given = store_url(url, must_be_used=True)
    from aiorwlock_remote.integrations.board.site import BoardSite  # noqa: PLC0415

    title = f"{parse(given)}  {resource_type or ''}".rstrip()
    can = "sees all locks and CAN END THEM" if allow_break else "sees all locks"
    site = BoardSite(
        FileScanner(given, resource_type),
        title=title,
        every=every,
        allow_break=allow_break,
        hosts=(*hosts, host),
        notice=f"No login of its own: anybody who can open this page {can}.",
    )
    with _listening(host, port) as listener:
        _announce(listener, can)
        if allow_break:
            _log_breaks()
        return asyncio.run(_serve(site, listener))


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise ConfigurationError(what=f"--host {host}: {exc.strerror or exc}") from exc
    with socket.create_server(address[:2], family=family) as listener:
        yield listener


def _announce(listener: socket.socket, can: str) -> None:
    ip, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(ip)
    shown = f"[{ip}]" if address.version == 6 else ip
    print(plain(f"http://{shown}:{port}/"), flush=True)
    if not address.is_loopback:
        print_message(
            f"WARNING: listening on {ip}, without a login: anybody who can connect to "
            f"port {port} {can}"
        )
    else:
        print_message(f"no login: anybody on this machine {can}")


def _log_breaks() -> None:
    # Who ended what, and why, is written to stderr as well.
    audit = logging.getLogger("aiorwlock_remote.audit")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s rwlock: %(message)s"))
    audit.addHandler(handler)


async def _serve(site: BoardSite, listener: socket.socket) -> int:
    import uvicorn  # noqa: PLC0415 - slow to import, and an extra

    from aiorwlock_remote.integrations.board.asgi import asgi_app  # noqa: PLC0415

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # Ours are taken below: the streams have to end before the server can.
            yield

    server = Server(
        uvicorn.Config(
            asgi_app(site),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_TIMEOUT,
        )
    )
    interrupt = Interrupt()

    async def stop_on_signal() -> None:
        await interrupt.listen(anyio.CancelScope())
        if interrupt.by is not None:
            site.board.stop()
            server.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(stop_on_signal)
        await server.serve([listener])
        group.cancel_scope.cancel()
    await site.board.aclose()
    by = interrupt.by or signal.SIGTERM
    return exit_codes.SIGNAL + by
