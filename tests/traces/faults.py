"""Faults planted into the core of recorded processes: replay has to find every one.

Each is a context manager that breaks one rule while it is active. Redis' rules are Lua:
the faults in ``IN_LUA`` replace a text of its scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.core import admission, fast_path, transition
from aiorwlock_remote.core.commands import Acquire
from aiorwlock_remote.core.doorman import Doorman, Grant, QueueEntry
from aiorwlock_remote.core.value import replace

Planted = Callable[[], AbstractContextManager[Any]]
PLANTED: dict[str, Planted] = {}
IN_LUA = {
    "a_reader_passes_a_waiting_writer": (
        "if policy == 'reader' or not admission.writer_waits() then return true end",
        "if true then return true end",
    )
}


def plant(make: Planted) -> Planted:
    PLANTED[make.__name__] = make
    return make


@plant
def a_reader_passes_a_waiting_writer() -> AbstractContextManager[Any]:
    return _in_all("writer_waits", lambda *_: False, admission)


@plant
def an_expired_holder_still_holds() -> AbstractContextManager[Any]:
    sound = Grant.dead
    return patch.object(Grant, "dead", lambda self, now: sound(self, now - 500_000))


@plant
def who_asks_again_loses_its_place() -> AbstractContextManager[Any]:
    sound = transition.acquire

    def broken(doorman: Doorman, cmd: Acquire, *rest: Any) -> Any:
        own = doorman.entry(cmd.client_id, cmd.mode)
        if own is not None:
            number = doorman.number + 1
            others = tuple(entry for entry in doorman.queue if entry is not own)
            moved = replace(own, number=number)
            doorman = replace(doorman, number=number, queue=(*others, moved))
        return sound(doorman, cmd, *rest)

    return patch.object(transition, "acquire", broken)


@plant
def fences_do_not_rise() -> AbstractContextManager[Any]:
    def broken(doorman: Doorman, floor: int) -> int:
        return doorman.last or max(1, floor)

    return _in_all("new_fence", broken, transition, fast_path, admission)


@plant
def a_later_writer_enters_first() -> AbstractContextManager[Any]:
    sound = admission.may_enter

    def broken(doorman: Doorman, entry: QueueEntry, *rest: Any) -> bool:
        free = not doorman.grants
        return free or sound(doorman, entry, *rest)

    return _in_all("may_enter", broken, transition)


@contextmanager
def _in_all(name: str, broken: object, *modules: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, name, broken))
        yield
