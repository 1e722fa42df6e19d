"""What a crash may take back."""

from __future__ import annotations

from aiorwlock_remote.cas.durability import lapses, only_places
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, Grant, QueueEntry
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace

GRANT = Grant("ticket", Mode.WRITE, 7, 1, 2)
HELD = Doorman(last=7, grants=(GRANT,), updated=1)
FREE = replace(HELD, grants=())
COME = (QueueEntry(1, "0a", Mode.WRITE, 3, 9, 1),)


def test_the_end_of_what_would_end_by_itself() -> None:
    assert lapses(HELD)
    assert not lapses(FREE)
    assert not lapses(None)
    for_ever = replace(GRANT, ticket="other", expires=None)
    assert not lapses(replace(HELD, grants=(GRANT, for_ever)))


def test_a_place_behind_who_is_in_or_is_about_to_come_in() -> None:
    for before in (HELD, FREE):
        assert only_places(before, replace(before, queue=COME, number=1))
        assert only_places(replace(before, queue=COME), before)


def test_nothing_that_changes_who_is_in_or_what_fence_comes_next() -> None:
    assert not only_places(None, replace(UNUSED_DOORMAN, queue=COME))
    assert not only_places(FREE, HELD)
    assert not only_places(HELD, FREE)
    assert not only_places(HELD, replace(HELD, last=8))
    renewed = replace(GRANT, expires=5)
    assert not only_places(HELD, replace(HELD, grants=(renewed,)))
