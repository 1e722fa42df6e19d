"""``rwlock run``: a command under a lock."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.cut_names import whole
from aiorwlock_remote.cli.locked_command import LockedCommand, LockedCommandOptions
from aiorwlock_remote.cli.options import resource_argument, store, store_option
from aiorwlock_remote.cli.signals import Signals
from aiorwlock_remote.core.lease import check_seconds

_HELP = """Run COMMAND while holding the lock TYPE/ID, as flock(1) does on one host.

\b
    rwlock run --timeout 60 deploy/web -- ./deploy.sh --now

The lock is renewed while the command runs and released when it has ended; the exit
code is the command's. In its environment:

\b
  RWLOCK_RESOURCE  TYPE/ID
  RWLOCK_FENCE     the fencing number: have what the command writes to refuse
                   numbers smaller than the highest it has seen
  RWLOCK_TICKET    with --export-ticket: what Locks.adopt() takes, as often as
                   you like: all share this one lock, which we go on renewing.
                   Who releases it after that, or leaves its connect() without
                   detach(), ends it.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command;
the lock is released when it has ended. Ctrl-C reaches it directly: it runs in the
same process group, with the same terminal. If the lock is lost (the store is out of
reach for a lease, or somebody broke it) the command gets SIGTERM and, after --grace
seconds, SIGKILL. Killed with SIGKILL itself, rwlock leaves the command running
without a lock once the lease has run out; then only the fence protects.

The exit code is 75 if the lock was not obtained in time, 76 if it was lost, 126 or
127 if the command cannot be run, 128 + n if signal n ended it.
"""


@click.command(
    help=_HELP,
    short_help="Run a command under a lock.",
    context_settings={"allow_interspersed_args": False},
)
@store_option
@click.option(
    "--write/--read",
    default=True,
    help="Alone (the default), or together with other readers.",
)
@click.option(
    "--timeout",
    type=float,
    metavar="S",
    help="Seconds to wait for the lock; 0 only tries. Default: as long as it takes.",
)
@click.option(
    "--lease",
    type=float,
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds after which the lock is free if this process or its host dies.",
)
@click.option("--reason", metavar="TEXT", help="Shown to others. Default: the command.")
@click.option(
    "--export-ticket", is_flag=True, help="Also set RWLOCK_TICKET, which is a secret."
)
@click.option(
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    default=exit_codes.CONFLICT,
    show_default=True,
    metavar="N",
    help="Exit code if the lock is not obtained in time.",
)
@click.option(
    "--grace",
    type=float,
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds from SIGTERM to SIGKILL when the lock is lost.",
)
@resource_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    *,
    url: str | None,
    target: tuple[str, str],
    command: tuple[str, ...],
    write: bool,
    timeout: float | None,
    lease: float,
    reason: str | None,
    export_ticket: bool,
    conflict_exit_code: int,
    grace: float,
) -> int:
    """See ``_HELP``; the exit code."""
    command = command[1:] if command[0] == "--" else command
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    check_seconds("grace", grace)
    job = LockedCommandOptions(
        url=store(url),
        target=whole(target),
        command=command,
        write=write,
        timeout=timeout,
        lease=lease,
        reason=_name_of(command[0]) if reason is None else reason,
        export_ticket=export_ticket,
        conflict_exit_code=conflict_exit_code,
        grace=grace,
    )
    return asyncio.run(LockedCommand(job, Signals()).main())


def _name_of(program: str) -> str:
    """Of its file, whose bytes need not be text."""
    return os.fsencode(Path(program).name).decode(errors="replace")
