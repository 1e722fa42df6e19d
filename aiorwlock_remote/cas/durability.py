"""What a crash of the server may take back, so that its commit need not be waited for.

Nothing on which anybody's being in depends, or the fence that comes next. A commit that
is not waited for is on the disk before any later one.
"""

from __future__ import annotations

from aiorwlock_remote.core.doorman import Doorman


def may_skip_fsync(
    before: Doorman | None, after: Doorman, *, stays: bool, leaves: bool
) -> bool:
    """Whether a crash may undo this step, in which the seat stays or is left."""
    if leaves:
        return lapses(before)
    return stays and only_places(before, after)


def lapses(record: Doorman | None) -> bool:
    """Whether all that is held would end by itself, if that it ended were undone."""
    if record is None or not record.grants:
        return False
    return all(grant.expires is not None for grant in record.grants)


def only_places(before: Doorman | None, after: Doorman) -> bool:
    """Whether all that changed is who waits: whoever loses its place asks again."""
    if before is None:
        return False
    return after.grants == before.grants and after.last == before.last
