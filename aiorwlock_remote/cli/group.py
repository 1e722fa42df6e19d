"""The command group ``rwlock``, which imports each command when it is used."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import cast

import click

from aiorwlock_remote import __version__

_COMMANDS = {
    "demo": "demo.command:demo",
    "run": "run:run",
    "ls": "resources:ls",
    "watch": "watch.command:watch",
    "board": "board:board",
    "show": "resources:show",
    "stale": "resources:stale",
    "break": "resources:break_",
    "exporter": "exporter:exporter",
    "doctor": "store:doctor",
    "bench": "bench:bench",
    "schema": "store:schema",
}
"""Module below ``aiorwlock_remote.cli`` and function, in the order of the help."""

_EPILOG = """\b
Exit codes:
    0  done
    1  refused: demo found violations, break found nothing that matches,
       doctor found something bad, ls or stale --fail found something
    2  bad input: a name, number, URL or option that cannot be used
   69  the store is down, unreachable or not fit for locks
   75  run: the lock was not obtained in time (--conflict-exit-code)
   76  run: the lock was lost while the command ran
  126  run: the command cannot be executed
  127  run: the command was not found
128+n  run: the command was ended by signal n; else its own exit code
       demo, watch, board, bench: ended by signal n

\b
Stores (`rwlock COMMAND --url URL`, or RWLOCK_URL in the environment):
  sqlite:////absolute/path.db     the processes of one host, no server needed
  file:///absolute/directory      the same, and shell scripts; with shared=yes
                                  the hosts that mount it
  redis://user:password@host/0    many hosts; rediss:// with TLS;
                                  redis+cluster://h1,h2 and
                                  redis+sentinel://h1,h2/name (also rediss+…);
                                  unix:///path.sock; valkey… means the same
  postgresql://user:pw@host/db    many hosts; see `rwlock schema postgresql`
  mariadb://user:pw@host/db       many hosts; see `rwlock schema mariadb`
  mysql://user:pw@host/db         many hosts; see `rwlock schema mysql`
  cassandra://host1,host2/space   many hosts; see `rwlock schema cassandra`
  etcd://host1,host2,host3        many hosts; etcds:// with TLS
  oracle://user:pw@host/service   many hosts; see `rwlock schema oracle`
"""


class _LazyGroup(click.Group):
    # Imports a command only when it is called: ``rwlock run`` is used in scripts and
    # cron jobs, and has to start quickly.

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module, _, name = _COMMANDS.get(cmd_name, "").partition(":")
        if not module:
            return None
        found = import_module(f"aiorwlock_remote.cli.{module}")
        return cast("click.Command", getattr(found, name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]  # click takes a second "--" out of ``args``
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            near = get_close_matches(name, _COMMANDS, n=1)
            if near and "Did you mean" not in exc.message:
                asked = exc.message.removesuffix(".")
                text = f"{asked} (did you mean {near[0]}?)"
                raise click.UsageError(text, exc.ctx) from None
            raise


@click.group(
    cls=_LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="rwlock")
def rwlock() -> None:
    """Use locks that many processes and machines share, from the command line."""
