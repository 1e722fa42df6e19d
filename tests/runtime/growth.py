"""What a process has of ours, counted: to see whether it grows with each new name."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "aiorwlock_remote"
SIZED = (dict, set, frozenset, list, deque)


def counted() -> Counter[str]:
    """Objects by their type, what is in their containers, threads and open files."""
    gc.collect()
    found = Counter(
        threads=threading.active_count(),
        files=len(list(Path("/proc/self/fd").iterdir())),
    )
    for one in gc.get_objects():
        kind = type(one)
        if str(kind.__module__).startswith(PACKAGE):  # of some types it is no text
            found[kind.__qualname__] += 1
            found.update(_held(kind.__qualname__, _attributes(one)))
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            found.update(_held(name, vars(module).items()))
    return found


def grown(before: Counter[str], after: Counter[str], least: int) -> dict[str, int]:
    """What there is more of, by so many at least."""
    more = {name: number - before[name] for name, number in after.items()}
    return {name: number for name, number in more.items() if number >= least}


def _attributes(one: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(one, "__dict__", {}).items()
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield name, getattr(one, name, None)


def _held(of: str, attributes: Any) -> dict[str, int]:  # noqa: ANN401 - pairs
    return {
        f"{of}.{name}": len(value)
        for name, value in attributes
        if isinstance(value, SIZED)
    }
