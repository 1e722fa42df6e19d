"""The scripts, put together from the files of ``lua/`` and named by their SHA-1.

One step is one script. Its text is the same for all commands; there are two of it,
because a server out of memory must refuse who wants to come in, but never who leaves.
A resource on a pair of keys has the same script with another seat.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from aiorwlock_remote.backends.redis.connection.calls import Script

PARTS = (
    *("head", "fast", "record", "turn", "seat"),
    *("entering", "moves", "ending", "save", "main"),
)
PAIR_PARTS = (
    *("head", "pair_head", "record", "turn", "seat"),
    *("entering", "moves", "ending", "save", "pair", "main"),
)


def read(part: str) -> str:
    """One file of ``lua/``."""
    lua = files("aiorwlock_remote.backends.redis") / "lua"
    return lua.joinpath(f"{part}.lua").read_text(encoding="utf-8")


def body(parts: Iterable[str] = PARTS) -> str:
    """A step, without the line that says what the server may do with it."""
    return "\n".join(read(part) for part in ("typed", *parts))


_BODY = body()
_PAIR = body(PAIR_PARTS)
_SET = body(("mutex_set", "mutex_set_main"))
_OCCUPANCY = body(("occupancy",))

ENTER = Script("enter", "#!lua\n" + _BODY)
"""A step; refused by a server that is out of memory."""
LEAVE = Script("leave", "#!lua flags=allow-oom\n" + _BODY)
"""The same step, carried out whatever the memory."""
LOOK = Script("look", "#!lua flags=no-writes\n" + body(("look",)), waits=False)
"""A resource as it stands."""
PAIR_ENTER = Script("pair_enter", "#!lua\n" + _PAIR)
"""A step at a pair of keys; refused by a server that is out of memory."""
PAIR_LEAVE = Script("pair_leave", "#!lua flags=allow-oom\n" + _PAIR)
"""The same, carried out whatever the memory."""
PAIR_LOOK = Script(
    "pair_look",
    "#!lua flags=no-writes\n" + body(("pair_look",)),
    waits=False,
)
"""A pair as it stands."""
SET_ENTER = Script("set_enter", "#!lua\n" + _SET)
"""A step on a mutex set; refused by a server that is out of memory."""
SET_LEAVE = Script("set_leave", "#!lua flags=allow-oom\n" + _SET)
"""The same, carried out whatever the memory."""
OCCUPY = Script("occupy", "#!lua\n" + _OCCUPANCY, waits=False)
"""A step of pending → using; refused by a server that is out of memory."""
VACATE = Script("vacate", "#!lua flags=allow-oom\n" + _OCCUPANCY, waits=False)
"""The same, carried out whatever the memory."""

ALL: tuple[Script, ...] = (
    *(ENTER, LEAVE, LOOK),
    *(PAIR_ENTER, PAIR_LEAVE, PAIR_LOOK),
    *(SET_ENTER, SET_LEAVE),
    *(OCCUPY, VACATE),
)
