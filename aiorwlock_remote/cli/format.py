"""Resources and their holders as JSON and as tables. Tickets are in neither.

No rich here: scripts call these commands often, and importing it takes longer than
the rest.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from aiorwlock_remote.cli.report import plain, tell
from aiorwlock_remote.core.text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from aiorwlock_remote import Holder, LockInfo, Queued

RESOURCE_KEYS = """\b
Keys of a resource (times are ISO 8601 in UTC, durations are seconds):
  resource    "TYPE/ID", with a slash in the type as %2F; also apart, as
              "type" and "id"
  locked      true if somebody holds it now
  fence       the last fencing number handed out; 0 if none is remembered
  holders     list of: holder (12 hex digits), mode ("read", "write"), fence
              (null: foreign), since, age, expires_in (null: never; negative:
              ran out, nobody asked since), host, pid, task, reason, foreign
              (true: taken by a program that does not use this library)
  queue       list of waiting processes, first come first: mode, waiting (how
              many tasks), age, host, pid, reason
  created_at, updated_at      null if unknown
  clock_set_back  seconds by which the store's clock was set back; 0 if not
"""


def print_json(value: object) -> None:
    """One document on stdout."""
    click.echo(json.dumps(value, indent=2))


def moment(when: datetime, precision: str = "milliseconds") -> str:
    """ISO 8601 in UTC."""
    return when.isoformat(timespec=precision).replace("+00:00", "Z")


def resource_of(seen: LockInfo) -> str:
    """TYPE/ID; TYPE:ID is a lock on a pair of keys."""
    return seen.target.label


def resource_json(seen: LockInfo) -> dict[str, object]:
    """A resource; the keys of ``RESOURCE_KEYS``."""
    return {
        "resource": resource_of(seen),
        "type": seen.resource_type,
        "id": seen.resource_id,
        "locked": seen.locked,
        "fence": seen.fence,
        "holders": [holder_json(holder) for holder in seen.holders],
        "queue": [_queued_json(queued) for queued in seen.queue],
        "created_at": moment(seen.created_at) if seen.created_at else None,
        "updated_at": moment(seen.updated_at) if seen.updated_at else None,
        "clock_set_back": round(seen.clock_set_back, 3),
    }


def holder_json(holder: Holder) -> dict[str, object]:
    """A holder; the keys of ``RESOURCE_KEYS``."""
    left = holder.expires_in
    return {
        "holder": holder.holder,
        "mode": holder.mode,
        "fence": holder.fence,
        "since": moment(holder.since),
        "age": round(holder.age, 3),
        "expires_in": None if left is None else round(left, 3),
        "host": holder.host,
        "pid": holder.pid,
        "task": holder.task,
        "reason": holder.reason,
        "foreign": holder.foreign,
    }


def _queued_json(queued: Queued) -> dict[str, object]:
    return {
        "mode": queued.mode,
        "waiting": queued.waiting,
        "age": round(queued.age, 3),
        "host": queued.host,
        "pid": queued.pid,
        "reason": queued.reason,
    }


# -------------------------------------------------------------------- for people


def fence_of(holder: Holder) -> str:
    """The fence as it is shown, and as ``break`` wants it."""
    return "-" if holder.fence is None else str(holder.fence)


def who(one: Holder | Queued) -> str:
    """``host/pid: reason``, as far as they are known."""
    place = f"{one.host}/{one.pid}" if one.host else ""
    if not one.host and getattr(one, "foreign", False):
        place = "a foreign program"
    return ": ".join(part for part in (place, one.reason) if part)


def span(seconds: float) -> str:
    """A duration, in a unit that reads well."""
    size = abs(seconds)
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if size >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def lease_left(holder: Holder) -> str:
    """How long the lease still runs."""
    left = holder.expires_in
    if left is None:
        return "never ends"
    return span(left) if left > 0 else f"ended {span(-left)} ago"


def waiting(queue: Iterable[Queued]) -> str:
    """How many wait: ``2 write, 1 read``."""
    count: Counter[str] = Counter()
    for queued in queue:
        count[queued.mode] += queued.waiting
    return ", ".join(
        f"{count[mode]} {mode}" for mode in ("write", "read") if count[mode]
    )


RESOURCE_HEAD = (
    *("RESOURCE", "MODE", "HOLDER", "FENCE", "AGE", "LEASE LEFT", "WAITING", "WHO"),
)


def resource_rows(seen: LockInfo) -> list[tuple[str, ...]]:
    """A row for each holder, or one if the resource is only waited for."""
    queue = waiting(seen.queue)
    return [
        (
            resource_of(seen),
            holder.mode,
            holder.holder,
            fence_of(holder),
            span(holder.age),
            lease_left(holder),
            queue,
            who(holder),
        )
        for holder in seen.holders
    ] or [(resource_of(seen), "free", "", "", "", "", queue, "")]


def print_resources(found: Iterable[LockInfo], *, as_json: bool, none: str) -> None:
    """By name: one line for each holder, and for each that is only waited for.

    ``none``: what people are told if there are none.
    """
    found = sorted(found, key=resource_of)
    if as_json:
        print_json([resource_json(seen) for seen in found])
    elif found:
        table(RESOURCE_HEAD, [row for seen in found for row in resource_rows(seen)])
    else:
        tell(none)


def nothing(resource_type: str | None, found: str) -> str:
    """Nothing ``found`` at all, or of one type; a resource is none."""
    if resource_type is None:
        return f"nothing {found}"
    told = f"nothing of type {quoted(resource_type)} {found}"
    if "/" in resource_type.strip("/"):
        return f"{told}; for one resource: rwlock show {resource_type}"
    return told


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns, a line for each row.

    At a terminal that is too narrow the last column goes below, indented: holders and
    fences are never cut, as ``break`` wants them whole.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    terminal = sys.stdout.isatty()
    wide = sum(widths) + 2 * (len(widths) - 1)
    below = terminal and wide > get_terminal_size().columns
    for row in (head, *rows):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line = "  ".join(list(padded)[:-1] if below else padded).rstrip()
        if below and row is not head and row[-1]:
            line += f"\n    {row[-1]}"
        click.echo(click.style(line, bold=True) if terminal and row is head else line)
