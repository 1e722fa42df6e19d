"""The Lua scripts, assembled from the files of ``lua/`` and named by their SHA-1.

One step is one script, with the same text for all commands. There are two of each, with
different flags: a server that is out of memory must refuse an acquire, but never a
release (test_script_costs.py). A resource on a pair of keys has the same script with
other rules for the published keys. A semaphore has scripts of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from aiorwlock_remote.backends.redis.connection.protocol import Script

PARTS = (
    *("start", "plain", "head", "fast", "checks", "record", "queue", "changes"),
    *("admission", "mutex_record", "acquire", "moves", "ending", "save_keys", "save"),
    "main",
)
PAIR_PARTS = (
    *("start", "head", "pair_head", "checks", "record", "queue", "changes"),
    *("admission", "mutex_record", "acquire", "moves", "ending", "save_keys"),
    *("save", "pair", "main"),
)
PERMIT_PARTS = (
    *("start", "permits_head", "permits_fast", "checks", "permits_record", "queue"),
    *("changes", "permits", "save_keys", "permits_save", "permits_main"),
)


def read(part: str) -> str:
    """Return the text of the file ``lua/{part}.lua``."""
    lua = files("aiorwlock_remote.backends.redis") / "lua"
    return lua.joinpath(f"{part}.lua").read_text(encoding="utf-8")


def body(parts: Iterable[str] = PARTS) -> str:
    """Join Lua files, named in ``parts``, to a script that lacks its ``#!lua`` line."""
    return "\n".join(read(part) for part in ("typed", *parts))


_BODY = body()
_PAIR = body(PAIR_PARTS)
_PERMITS = body(PERMIT_PARTS)
_SET = body(("mutex_set", "mutex_set_main"))
_OCCUPANCY = body(("occupancy",))

# Without flags, the server refuses a script while it is out of memory.
ENTER = Script("enter", "#!lua\n" + _BODY)
LEAVE = Script("leave", "#!lua flags=allow-oom\n" + _BODY)
LOOK = Script("look", "#!lua flags=no-writes\n" + body(("look",)), waits=False)
PAIR_ENTER = Script("pair_enter", "#!lua\n" + _PAIR)
PAIR_LEAVE = Script("pair_leave", "#!lua flags=allow-oom\n" + _PAIR)
PAIR_LOOK = Script(
    "pair_look", "#!lua flags=no-writes\n" + body(("pair_look",)), waits=False
)
PERMIT_ENTER = Script("permit_enter", "#!lua\n" + _PERMITS)
PERMIT_LEAVE = Script("permit_leave", "#!lua flags=allow-oom\n" + _PERMITS)
SET_ENTER = Script("set_enter", "#!lua\n" + _SET)
SET_LEAVE = Script("set_leave", "#!lua flags=allow-oom\n" + _SET)
OCCUPY = Script("occupy", "#!lua\n" + _OCCUPANCY, waits=False)
VACATE = Script("vacate", "#!lua flags=allow-oom\n" + _OCCUPANCY, waits=False)

ALL: tuple[Script, ...] = (
    *(ENTER, LEAVE, LOOK),
    *(PAIR_ENTER, PAIR_LEAVE, PAIR_LOOK),
    *(PERMIT_ENTER, PERMIT_LEAVE),
    *(SET_ENTER, SET_LEAVE),
    *(OCCUPY, VACATE),
)
