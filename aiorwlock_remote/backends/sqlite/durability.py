"""What has to outlive a power cut: a fence that nobody had before, and nothing else.

All who use the file are on one host. A power cut ends them, and the next boot ends what
they held or waited for (``Doorman.after_reboot``). So a commit that hands out no fence
need not wait for the disk: in WAL mode it reaches it before any later one does, and a
process that is killed takes nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from aiorwlock_remote.core.commands import Command, Release, Renew, Withdraw
from aiorwlock_remote.core.doorman import Doorman

Level = Literal["FULL", "NORMAL"]
"""Of ``PRAGMA synchronous``: whether a commit waits for the disk."""


class FenceNeedsSync(Exception):
    """A step hands one out, which was not to be expected."""


def level_of(commands: Iterable[Command]) -> Level:
    """That which these need, as far as can be told before they are carried out."""
    return "NORMAL" if all(map(_only_ends, commands)) else "FULL"


def check(level: Level, before: Doorman | None, after: Doorman) -> None:
    """See to it that no fence is handed out by a commit that does not wait.

    Raises:
        NewFence: it would be.
    """
    last = 0 if before is None else before.last
    if level != "FULL" and after.last > last:
        raise FenceNeedsSync


def _only_ends(command: Command) -> bool:
    if isinstance(command, Release):
        return not command.then
    return isinstance(command, Renew | Withdraw)
