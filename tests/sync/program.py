"""A program of its own that uses the synchronous API: ``python -m tests.sync.program``.

Arguments: the URL, and what to do. It prints a line when it holds the lock.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

from aiorwlock_remote.sync import Closed, Held, LockError, Locks, connect

NAME = "order", 1


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def end(locks: Locks) -> None:
    """End without a release: the exit gives the lock back."""
    kept.append(locks.mutex(*NAME, lease=300).acquire())
    say("held")


def leave(locks: Locks) -> None:
    """End inside of a block."""
    with locks.mutex(*NAME, lease=300).acquire():
        say("held")
        sys.exit(3)


def fail(locks: Locks) -> None:
    kept.append(locks.mutex(*NAME, lease=300).acquire())
    say("held")
    raise ValueError


def wait(locks: Locks) -> None:
    """End while a daemon thread waits for a lock."""
    kept.append(locks.mutex(*NAME, lease=300).acquire())

    def acquire() -> None:
        with suppress(Closed):
            locks.mutex(*NAME).acquire()

    threading.Thread(target=acquire, daemon=True).start()
    while not locks.mutex(*NAME).info().queue:
        time.sleep(0.01)
    say("held")


def hold(locks: Locks) -> None:
    """Hold with a short lease until a line comes, then look whether it is held."""
    try:
        with locks.mutex(*NAME, lease=1.5).acquire() as held:
            say("held")
            sys.stdin.readline()
            try:
                held.check()
                say("checked")
            except LockError as exc:
                say(f"check {type(exc).__name__}")
    except LockError as exc:
        say(f"exit {type(exc).__name__}")


kept: list[Held] = []
WORK = {work.__name__: work for work in (end, leave, fail, wait, hold)}

if __name__ == "__main__":
    WORK[sys.argv[2]](connect(sys.argv[1]))
