"""What a crash may take back."""

from __future__ import annotations

from aiorwlock_remote.cas.table_cas import may_skip_fsync
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, Grant, QueueEntry
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace

GRANT = Grant("ticket", Mode.WRITE, 7, 1, 2)
HELD = Doorman(last=7, grants=(GRANT,), updated=1)
FREE = replace(HELD, grants=())
COME = (QueueEntry(1, "0a", Mode.WRITE, 3, 9, 1),)


def all_grants_expire(before: Doorman | None) -> bool:
    """Whether a crash may undo a step that removes the mutex record."""
    return may_skip_fsync(before, FREE, stays=False, leaves=True)


def only_queue_changed(before: Doorman | None, after: Doorman) -> bool:
    """Whether a crash may undo a step that keeps the mutex record."""
    assert not may_skip_fsync(before, after, stays=False, leaves=False)
    return may_skip_fsync(before, after, stays=True, leaves=False)


def test_the_end_of_what_would_end_by_itself() -> None:
    assert all_grants_expire(HELD)
    assert not all_grants_expire(FREE)
    assert not all_grants_expire(None)
    for_ever = replace(GRANT, ticket="other", expires=None)
    assert not all_grants_expire(replace(HELD, grants=(GRANT, for_ever)))


def test_a_place_behind_who_is_in_or_is_about_to_come_in() -> None:
    for before in (HELD, FREE):
        assert only_queue_changed(before, replace(before, queue=COME, number=1))
        assert only_queue_changed(replace(before, queue=COME), before)


def test_changes_of_holders_or_fences_are_synced() -> None:
    assert not only_queue_changed(None, replace(UNUSED_DOORMAN, queue=COME))
    assert not only_queue_changed(FREE, HELD)
    assert not only_queue_changed(HELD, FREE)
    assert not only_queue_changed(HELD, replace(HELD, last=8))
    renewed = replace(GRANT, expires=5)
    assert not only_queue_changed(HELD, replace(HELD, grants=(renewed,)))


def test_a_pushed_grant_that_ends_before_what_a_crash_would_bring_back() -> None:
    """The grant before it is held again then, until nobody believes in the message."""
    before = replace(HELD, grants=(replace(GRANT, expires=10),), queue=COME)
    pushed = Grant("next", Mode.WRITE, 8, 3, 10)
    after = replace(before, last=8, grants=(pushed,), pushed=True)
    assert may_skip_fsync(before, after, stays=False, leaves=False)
    longer = replace(after, grants=(replace(pushed, expires=11),))
    assert not may_skip_fsync(before, longer, stays=False, leaves=False)
    for_ever = replace(before, grants=(replace(GRANT, expires=None),))
    assert not may_skip_fsync(for_ever, after, stays=False, leaves=False)
    assert not may_skip_fsync(FREE, after, stays=False, leaves=False)
    assert not may_skip_fsync(None, after, stays=False, leaves=False)
    confirmed = replace(after, pushed=False)
    assert not may_skip_fsync(before, confirmed, stays=False, leaves=False)
    assert not may_skip_fsync(after, confirmed, stays=False, leaves=False)
