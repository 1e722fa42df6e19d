"""The scripts, put together from the files of ``lua/`` and named by their SHA-1.

One step is one script. Its text is the same for all commands; there are two of it,
because a server out of memory must refuse who wants to come in, but never who leaves.
A resource on a pair of keys has the same script with another seat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files
from typing import TypeAlias

from aiorwlock_remote.backends.redis.calls import Arg

PARTS = (
    *("head", "fast", "record", "turn", "seat"),
    *("entering", "moves", "ending", "save", "main"),
)
PAIR_PARTS = (
    *("head", "pair_head", "record", "turn", "seat"),
    *("entering", "moves", "ending", "save", "pair", "main"),
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script: ``sha`` is how the server names it.

    ``waits``: whether it may give a place, whose owner is told of its turn.
    """

    name: str
    text: str = field(repr=False)
    waits: bool = True
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        """Named by what it says."""
        digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


def read(part: str) -> str:
    """One file of ``lua/``."""
    lua = files("aiorwlock_remote.backends.redis") / "lua"
    return lua.joinpath(f"{part}.lua").read_text(encoding="utf-8")


def body(parts: Iterable[str] = PARTS) -> str:
    """A step, without the line that says what the server may do with it."""
    return "\n".join(read(part) for part in parts)


_BODY = body()
_PAIR = body(PAIR_PARTS)
_SET = body(("mutex_set", "mutex_set_main"))

Request: TypeAlias = "tuple[Script, tuple[Arg, ...]]"
"""A script, and what follows its hash: the number of keys, the keys, the arguments."""

ENTER = Script("enter", "#!lua\n" + _BODY)
"""A step; refused by a server that is out of memory."""
LEAVE = Script("leave", "#!lua flags=allow-oom\n" + _BODY)
"""The same step, carried out whatever the memory."""
LOOK = Script("look", "#!lua flags=no-writes\n" + read("look"), waits=False)
"""A resource as it stands."""
PAIR_ENTER = Script("pair_enter", "#!lua\n" + _PAIR)
"""A step at a pair of keys; refused by a server that is out of memory."""
PAIR_LEAVE = Script("pair_leave", "#!lua flags=allow-oom\n" + _PAIR)
"""The same, carried out whatever the memory."""
PAIR_LOOK = Script(
    "pair_look", "#!lua flags=no-writes\n" + read("pair_look"), waits=False
)
"""A pair as it stands."""
SET_ENTER = Script("set_enter", "#!lua\n" + _SET)
"""A step on a mutex set; refused by a server that is out of memory."""
SET_LEAVE = Script("set_leave", "#!lua flags=allow-oom\n" + _SET)
"""The same, carried out whatever the memory."""

ALL: tuple[Script, ...] = (
    *(ENTER, LEAVE, LOOK),
    *(PAIR_ENTER, PAIR_LEAVE, PAIR_LOOK),
    *(SET_ENTER, SET_LEAVE),
)
