"""Do two locks exclude each other? Ask this before programs with both run together.

``python exclude_each_other.py locks.py:old locks.py:new``: each function of the file
tries once to acquire its lock. It returns a function that releases the lock, or None if
the lock is taken. Each lock is tried by two processes, as in two programs.

Exit status: 0: they exclude each other, 1: they do not, 2: the check proves nothing.
"""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection

EXCLUDE, DO_NOT, UNKNOWN = range(3)


def program(function: str, parent: Connection) -> None:
    """Try to acquire the lock, tell the parent, and release it, each when told to."""
    path, _, name = function.rpartition(":")
    take: Callable[[], Callable[[], object] | None] = runpy.run_path(path)[name]
    with suppress(EOFError):  # the parent has seen enough
        while parent.recv():
            release = take()
            parent.send(release is not None)
            parent.recv()
            if release is not None:
                release()
            parent.send("released")


class Program:
    """A process that holds a lock, or is refused, during a ``with`` block."""

    def __init__(self, function: str) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=program, args=(function, theirs))
        self._process.start()
        theirs.close()

    @contextmanager
    def tried(self) -> Iterator[bool]:
        """Try to acquire the lock, and release it after the block."""
        try:
            self._pipe.send("acquire")
            yield self._pipe.recv()
            self._pipe.send("release")
            self._pipe.recv()
        except (EOFError, OSError):
            sys.exit(UNKNOWN)  # the process has printed why

    def close(self) -> None:
        """Tell the process to end, and wait for that."""
        self._pipe.close()
        self._process.join()


Users = tuple[str, Program, Program]


def check(old: str, new: str) -> int:
    """Print what excludes what; return the exit status."""
    with (
        closing(Program(old)) as old_one,
        closing(Program(old)) as old_other,
        closing(Program(new)) as new_one,
        closing(Program(new)) as new_other,
    ):
        return compare((old, old_one, old_other), (new, new_one, new_other))


def compare(old: Users, new: Users) -> int:
    """Compare two locks, each with its name and two programs that use it."""
    for lock, one, other in (old, new):
        with one.tried() as got, other.tried() as got_again:
            if not got:
                print(f"{lock} is not free, so nothing can be said")
                return UNKNOWN
            if got_again:
                print(f"{lock} does not even exclude itself")
                return UNKNOWN
    status = EXCLUDE
    for (first, one, _), (second, other, _) in ((old, new), (new, old)):
        with one.tried() as got, other.tried() as got_too:
            if not got:
                print(f"{first} was not released")
                return UNKNOWN
            if got_too:
                status = DO_NOT
            print(
                f"{first} is held: {second} was {'GRANTED' if got_too else 'refused'}"
            )
    print(
        "They exclude each other"
        if status == EXCLUDE
        else "They do NOT exclude each other"
    )
    return status


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(check(*sys.argv[1:]))
