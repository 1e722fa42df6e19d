"""A change in words, and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiorwlock_remote.cli.format import (
    fence_of,
    holder_json,
    lease_left,
    moment,
    resource_json,
    resource_of,
    span,
    waiting,
    who,
)

if TYPE_CHECKING:
    from datetime import datetime

    from aiorwlock_remote import Holder
    from aiorwlock_remote.cli.watch.changes import Change

CHANGE_KEYS = """\b
--json gives a line for each change, with the keys:
  time        of this machine; a change is seen when the store is asked
  change      what happened:
                watching     the store answers: at first, or again
                held         was held when the watch began
                granted      somebody got it, or holds it in another mode now
                ended        a grant is gone: released, or broken
                lost         its lease ran out
                free         nobody holds it any more
                queue        who waits for it is different now
                unavailable  the store does not answer
  resource    "TYPE/ID"; null if it is about the store
  holder      whom it is about, as last seen, as in "holders" below; null for
              free, queue and the store
  now         the resource afterwards; else null
  error       why the store is unavailable; else null
"""


def as_json(change: Change, when: datetime) -> str:
    """The keys of ``CHANGE_KEYS``, on one line."""
    now, holder = change.now, change.holder
    return json.dumps(
        {
            "time": moment(when),
            "change": change.kind,
            "resource": None if now is None else resource_of(now),
            "holder": None if holder is None else holder_json(holder),
            "now": None if now is None else resource_json(now),
            "error": change.error or None,
        }
    )


def as_line(change: Change, when: datetime) -> str:
    """For people who read a file."""
    return f"{moment(when)}  {in_words(change)}"


def in_words(change: Change) -> str:
    """Without the time."""
    about = "" if change.now is None else resource_of(change.now)
    parts = (f"{change.kind:<11}", about, _detail(change))
    return "  ".join(part for part in parts if part).rstrip()


def _detail(change: Change) -> str:
    if change.kind == "queue" and change.now is not None:
        return f"waiting: {waiting(change.now.queue) or 'nobody'}"
    if change.holder is None:
        return change.error
    one = change.holder
    known = (*_grant(one), *_time(change, one), who(one))
    return ", ".join(part for part in known if part)


def _grant(one: Holder) -> tuple[str, str]:
    return f"{one.mode} {one.holder}", f"fence {fence_of(one)}"


def _time(change: Change, one: Holder) -> tuple[str, ...]:
    lease = f"lease {lease_left(one)}"
    over = one.expires_in is not None and one.expires_in <= 0
    match change.kind:
        case "held":
            return f"for {span(one.age)}", lease
        case "granted":
            return (lease,)
        case "lost":
            return f"after {span(one.age)}", lease if over else "its lease ran out"
        case _:
            return (f"after {span(one.age)}",)
