"""How much code one uncontended cycle passes: a reader of it has to open these files.

Only a bound is asserted. The lists are printed (``pytest -s``): they are the reading
list for somebody who wants to follow an acquire and its release.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest

import aiorwlock_remote
from aiorwlock_remote import Locks, connect
from aiorwlock_remote.core.text import quoted
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_on("asyncio", "each loop has one adapter"),
]

PACKAGE = Path(aiorwlock_remote.__file__).parent
WARM_UP_CYCLES = 5


@dataclass
class Footprint:
    """The files and classes of the package whose code ran while it was recorded."""

    codes: set[CodeType] = field(default_factory=set)
    recording: bool = False

    @property
    def files(self) -> list[str]:
        return sorted({_file_of(code) for code in self.codes})

    @property
    def classes(self) -> list[str]:
        """Those that define a method that ran; one inherited counts for its base."""
        found = {(_file_of(code), _class_of(code)) for code in self.codes}
        return sorted(f"{file}: {name}" for file, name in found if name)

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if self.recording and event == "call" and _is_ours(frame.f_code):
            self.codes.add(frame.f_code)

    def __str__(self) -> str:
        files = ""
        for name in self.files:
            functions = {c.co_qualname for c in self.codes if _file_of(c) == name}
            files += f"\n  {name}: {', '.join(sorted(functions))}"
        classes = "".join(f"\n  {name}" for name in self.classes)
        return (
            f"{len(self.files)} files:{files}\n{len(self.classes)} classes:{classes}\n"
        )


def _is_ours(code: CodeType) -> bool:
    return Path(code.co_filename).is_relative_to(PACKAGE)


def _file_of(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(PACKAGE))


def _class_of(code: CodeType) -> str:
    """The class in which the function, or the one around it, is defined."""
    return code.co_qualname.partition(".<locals>")[0].rpartition(".")[0]


@contextmanager
def profiled() -> Iterator[Footprint]:
    """Profile this thread and those that start inside; record when it is asked for.

    It is entered before ``connect``, because Python 3.11 cannot profile threads that
    run already, and the deadline thread is one of them.
    """
    footprint = Footprint()
    threading.setprofile(footprint.profile)
    sys.setprofile(footprint.profile)
    try:
        yield footprint
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def cycle(locks: Locks) -> None:
    async with locks.mutex("order", 42):
        pass


async def footprint_of_cycle(url: str) -> Footprint:
    with profiled() as footprint:
        async with connect(url) as locks:
            for _ in range(WARM_UP_CYCLES):
                await cycle(locks)
            footprint.recording = True
            await cycle(locks)
            footprint.recording = False
    return footprint


async def test_redis(fresh_redis: RedisServer) -> None:
    footprint = await footprint_of_cycle(fresh_redis.url)
    print(f"Redis: {footprint}")  # noqa: T201 - for who wants to read along
    assert 5 < len(footprint.files) <= 20
    assert 5 < len(footprint.classes) <= 24


async def test_postgresql(tables: str) -> None:
    footprint = await footprint_of_cycle(tables)
    print(f"PostgreSQL: {footprint}")  # noqa: T201 - likewise
    assert 5 < len(footprint.files) <= 32


async def test_code_in_other_threads_counts() -> None:
    """Else a hop to another thread would hide what it passes."""
    with profiled() as footprint:
        footprint.recording = True
        thread = threading.Thread(target=quoted, args=("order",))
        thread.start()
        thread.join()
        footprint.recording = False
    assert footprint.files == ["core/text.py"]
