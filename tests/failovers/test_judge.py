"""The judge of failovers finds what is planted, and nothing else."""

from __future__ import annotations

from aiorwlock_remote.testing.history import Event, Granted, Lost, Released, Releasing
from tests.failovers.judge import Cost, fences_gone_back, judge

SECOND = 10**9
BEGUN, ENDED = 10 * SECOND, 20 * SECOND


def granted(holder: str, at: float, *, lease: float = 8, fence: int = 0) -> Granted:
    time = round(at * SECOND)
    return Granted(
        *("w1", "kept/1", holder, time),
        asked_at=time - 1,
        mode="W",
        fence=fence or time,
        until=time + round(lease * SECOND),
    )


def lost(holder: str, at: float, reason: str) -> Lost:
    return Lost("w1", "kept/1", holder, round(at * SECOND), reason)


def released(holder: str, at: float, *, ok: bool) -> list[Event]:
    time = round(at * SECOND)
    return [
        Releasing("w1", "kept/1", holder, time, None),
        Released("w1", "kept/1", holder, time + 1, time, ok),
    ]


def cost(*events: Event) -> Cost:
    return judge(events, BEGUN, ENDED)


def test_who_enters_after_a_release_has_taken_nothing() -> None:
    found = cost(granted("a", 11), *released("a", 12, ok=True), granted("b", 13))
    assert found == Cost(
        grants=2, forgotten=0, both=0.0, refused=0, ended=0, nobody=7.0
    )


def test_a_second_holder_means_a_forgotten_grant() -> None:
    """The negative control: an overlap that was planted."""
    found = cost(granted("a", 9), granted("b", 12), lost("a", 13.5, "stolen"))
    assert (found.forgotten, found.both, found.ended) == (1, 1.5, 0)


def test_a_holder_that_never_learns_overlaps_until_its_deadline() -> None:
    found = cost(granted("a", 9, lease=4), granted("b", 12))
    assert (found.forgotten, found.both) == (1, 1.0)


def test_a_grant_that_the_store_does_not_know_is_forgotten() -> None:
    """The negative control: a forgotten grant, which nobody else has got."""
    for reason in ("forced", "stolen", "expired"):
        found = cost(granted("a", 9), lost("a", 12, reason))
        assert (found.forgotten, found.both, found.ended) == (1, 0.0, 0)


def test_a_release_that_the_store_does_not_know_is_of_a_forgotten_grant() -> None:
    found = cost(granted("a", 9), *released("a", 12, ok=False))
    assert found.forgotten == 1


def test_a_lease_that_ran_out_is_not_forgotten() -> None:
    for loss in (lost("a", 12, "unreachable"), lost("a", 17, "expired")):
        found = cost(granted("a", 9), loss)
        assert (found.forgotten, found.ended) == (0, 1)


def test_what_was_before_the_failover_is_not_its_cost() -> None:
    found = cost(granted("a", 3), granted("b", 5), lost("a", 6, "stolen"))
    assert (found.forgotten, found.both, found.grants) == (0, 0.0, 0)
    assert found.nobody == 10.0


def test_a_fence_that_goes_back_is_counted() -> None:
    first = [granted("a", 11, fence=9), *released("a", 12, ok=True)]
    assert fences_gone_back([*first, granted("b", 13, fence=8)]) == 1
    assert fences_gone_back([*first, granted("b", 13, fence=10)]) == 0
