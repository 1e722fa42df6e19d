"""Resources and their holders as JSON and as tables, both without tickets.

This module does not import rich: scripts call these commands often, and importing rich
takes longer than the rest of such a command.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from datetime import datetime
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.core.text import plain, quoted

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from aiorwlock_remote import Holder, LockInfo, Queued

RESOURCE_KEYS = """\b
Keys of a resource (times are ISO 8601 in UTC, durations are seconds):
  resource    "TYPE/ID", with a slash in the type as %2F; also apart, as
              "type" and "id"
  locked      true if it is held now
  fence       the last fencing number handed out; 0 if none is remembered
  limit       of a semaphore only: how many permits it has; null if free
  holders     list of: holder (12 hex digits), mode ("read", "write",
              "permit"), fence (null: foreign), since, age, expires_in
              (null: never; negative: ran out, unnoticed so far), host, pid,
              task, reason, foreign (true: taken by a program that does not
              use this library)
  queue       list of waiting processes, first come first: mode, waiting (how
              many tasks), age, host, pid, reason
  created_at, updated_at      null if unknown
  clock_set_back  seconds by which the store's clock was set back; 0 if not
"""


def print_json(value: object) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(value, indent=2))


def moment(when: datetime, precision: str = "milliseconds") -> str:
    """Return a time as ISO 8601 in UTC; ``precision``: ``isoformat``'s ``timespec``."""
    return when.isoformat(timespec=precision).replace("+00:00", "Z")


def resource_json(seen: LockInfo) -> dict[str, object]:
    """Return a resource as a dict for JSON, with the keys of ``RESOURCE_KEYS``."""
    return {
        "resource": seen.target.label,
        "type": seen.resource_type,
        "id": seen.resource_id,
        **_fields(seen, "locked", "fence"),
        **({"limit": seen.limit} if seen.semaphore else {}),
        "holders": [holder_json(holder) for holder in seen.holders],
        "queue": [
            _fields(queued, "mode", "waiting", "age", "host", "pid", "reason")
            for queued in seen.queue
        ],
        **_fields(seen, "created_at", "updated_at", "clock_set_back"),
    }


def holder_json(holder: Holder) -> dict[str, object]:
    """Return a holder as a dict for JSON, with the keys of ``RESOURCE_KEYS``."""
    grant = _fields(holder, "holder", "mode", "fence", "since", "age", "expires_in")
    return grant | _fields(holder, "host", "pid", "task", "reason", "foreign")


def _fields(one: object, *names: str) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(one, name) for name in names}
    for name, value in values.items():
        if isinstance(value, float):  # seconds
            values[name] = round(value, 3)
        elif isinstance(value, datetime):
            values[name] = moment(value)
    return values


# --------------------------------------------------------------------- as a table


def fence_of(holder: Holder) -> str:
    """Return the fence as ``rwlock break`` takes it; ``-`` if there is none."""
    return "-" if holder.fence is None else str(holder.fence)


def who(one: Holder | Queued) -> str:
    """Return ``host/pid: reason`` of a holder or waiter, without what is not known."""
    place = f"{one.host}/{one.pid}" if one.host else ""
    if not one.host and getattr(one, "foreign", False):
        place = "a foreign program"
    return ": ".join(part for part in (place, one.reason) if part)


def span(seconds: float) -> str:
    """Return a duration as text, in a unit that needs few digits: ``90 min``."""
    # "119 s" and "90 min" say more than "2 min" and "2 h".
    size = abs(seconds)
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if size >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def lease_left(holder: Holder) -> str:
    """Return as text how long a holder's lease still runs, or when it ended."""
    left = holder.expires_in
    if left is None:
        return "never ends"
    return span(left) if left > 0 else f"ended {span(-left)} ago"


def waiting(queue: Iterable[Queued]) -> str:
    """Return how many tasks wait, as ``2 write, 1 read``; "" if none wait."""
    count: Counter[str] = Counter()
    for queued in queue:
        count[queued.mode] += queued.waiting
    return ", ".join(
        f"{count[mode]} {mode}" for mode in ("write", "read", "permit") if count[mode]
    )


RESOURCE_HEAD = (
    *("RESOURCE", "MODE", "HOLDER", "FENCE", "AGE", "LEASE LEFT", "WAITING", "WHO"),
)


def permits(seen: LockInfo) -> str:
    """Return how many permits of a semaphore are held: ``3 of 5``; "" for a lock."""
    return f"{seen.permits_held} of {seen.limit}" if seen.limit is not None else ""


def _mode(seen: LockInfo, holder: Holder | None) -> str:
    mode = "free" if holder is None else holder.mode
    counted = permits(seen)
    return f"{mode} ({counted})" if counted else mode


def resource_rows(seen: LockInfo) -> list[tuple[str, ...]]:
    """Return a table row for each holder, or one row if the resource has no holder."""
    queue = waiting(seen.queue)
    return [
        (
            seen.target.label,
            _mode(seen, holder),
            holder.holder,
            fence_of(holder),
            span(holder.age),
            lease_left(holder),
            queue,
            who(holder),
        )
        for holder in seen.holders
    ] or [(seen.target.label, _mode(seen, None), "", "", "", "", queue, "")]


def print_resources(found: Iterable[LockInfo], *, as_json: bool, none: str) -> None:
    """Print resources as JSON or as a table, those that no lease will free first.

    ``none``: message to print on stderr if a table was wanted and there is no resource.
    """
    found = sorted(
        found, key=lambda seen: (not _endless(seen), seen.target.label, seen.semaphore)
    )
    if as_json:
        print_json([resource_json(seen) for seen in found])
    elif found:
        rows: list[tuple[str, ...]] = []
        striking: set[int] = set()
        for seen in found:
            left = seen.stale()
            abandoned = {one.holder for one in (left.holders if left else ())}
            for number, holder in enumerate(seen.holders, len(rows)):
                if holder.holder in abandoned:
                    striking.add(number)
            rows += resource_rows(seen)
        table(RESOURCE_HEAD, rows, striking)
    else:
        print_message(none)


def _endless(seen: LockInfo) -> bool:
    return any(holder.expires_in is None for holder in seen.holders)


def print_break_commands(seen: Iterable[LockInfo], store: str) -> None:
    """Print the command that ends each grant of these resources that blocks others.

    ``store``: the options that name the store, as in ``--url URL``; may be empty.
    """
    # A holder whose lease has ended blocks no other.
    commands = [
        f"  rwlock break {store}--holder {holder.holder} --fence {fence_of(holder)}"
        f" --reason WHY {'--semaphore ' if one.semaphore else ''}"
        f"{shlex.quote(plain(one.target.label))}"
        for one in seen
        for holder in one.holders
        if holder.expires_in is None or holder.expires_in > 0
    ]
    if commands:
        click.echo("\nto end the grant of a holder that is dead:")
        for command in commands:
            click.echo(command)


def nothing(resource_type: str | None, found: str) -> str:
    """Return "nothing FOUND" or "nothing of type TYPE FOUND"; found: like "is held"."""
    if resource_type is None:
        return f"nothing {found}"
    text = f"nothing of type {quoted(resource_type)} {found}"
    # A slash inside: the user gave a resource where a type belongs.
    if "/" in resource_type.strip("/"):
        return f"{text}; for one resource: rwlock show {resource_type}"
    return text


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], striking: Container[int] = ()
) -> None:
    """Print a heading line and a line for each row, in aligned columns.

    At a terminal that is too narrow the last columns are printed below their line,
    indented, as many as need be, and no word is broken. Holders and fences are never
    cut, as ``rwlock break`` takes them whole. ``striking``: indices of the rows that a
    terminal shows in red.
    """
    # Names are written by other programs; the widths are those of what is shown.
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    terminal = sys.stdout.isatty()
    room = get_terminal_size().columns
    beside = len(head)
    if terminal:
        while beside > 1 and sum(widths[:beside]) + 2 * (beside - 1) > room:
            beside -= 1

    def line(row: Sequence[str]) -> str:
        cells = zip(row[:beside], widths[:beside], strict=True)
        return "  ".join(cell.ljust(width) for cell, width in cells).rstrip()

    _echo(line(head), bold=True)
    for number, row in enumerate(rows):
        below = [
            cell if name in ("WHO", head[-1]) else f"{name.lower()} {cell}"
            for name, cell in zip(head[beside:], row[beside:], strict=True)
            if cell
        ]
        wrapped = wrap(
            ", ".join(below),
            width=room,
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        style = {"fg": "red"} if number in striking else {}
        _echo("\n".join([line(row), *wrapped]), **style)


def _echo(text: str, **style: Any) -> None:  # noqa: ANN401 - arguments of click.style
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(click.style(text, **style) if coloured and style else text)
