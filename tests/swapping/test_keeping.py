"""A thread that waits for answers, in place of an event loop."""

from __future__ import annotations

from aiorwlock_remote.runtime.clock import SystemClock
from aiorwlock_remote.swapping.keeping import ThreadHost


def test_what_is_to_be_done_later_is_done_in_order_and_not_before() -> None:
    clock = SystemClock()
    host, began = ThreadHost(clock), clock.now()
    done: list[tuple[str, float]] = []

    def tell(name: str) -> None:
        done.append((name, clock.now() - began))

    host.later(0.06, lambda: tell("last"))
    host.later(0.03, lambda: tell("second"))
    host.call_soon(tell, "first")
    host.run(lambda: len(done) == 3, began + 30)
    assert [name for name, _ in done] == ["first", "second", "last"]
    assert done[1][1] >= 0.03
    assert done[2][1] >= 0.06


def test_it_waits_no_longer_than_it_is_told() -> None:
    clock = SystemClock()
    host, began = ThreadHost(clock), clock.now()
    host.later(3600, lambda: None)
    host.run(lambda: False, began + 0.02)
    assert clock.now() - began >= 0.02
