"""Lines for files and programs, whoever reads them, or does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote.cli.watch.command import LineOutput
from aiorwlock_remote.cli.watch.state import as_line
from aiorwlock_remote.locks.changes import Change
from tests.cli.watch.fix_watch import NOON

LINE = b"2026-11-22T12:00:00.000Z  unavailable  "


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def down(error: str) -> Change:
    return Change("unavailable", error=error)


@pytest.mark.asyncio
async def test_a_full_pipe_keeps_no_signal_waiting(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    lines = LineOutput(as_line, writing)
    for error in ("x" * 200_000, "y"):
        with anyio.move_on_after(0.01) as scope:
            await lines.write([down(error)], NOON)
        assert scope.cancelled_caught
    output = os.read(reading, 300_000)
    assert output.startswith(LINE + b"xxx")
    await lines.write([down("z"), down("\x1b\udc80")], NOON)
    assert os.read(reading, 1000) == LINE + b"z\n" + LINE + rb"\x1b\udc80" + b"\n"


@pytest.mark.asyncio
async def test_a_file_takes_them_all(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        lines = LineOutput(as_line, file.fileno())
        lines.check()
        await lines.write([down("x" * 200_000), down("y")], NOON)
    assert path.read_bytes() == LINE + b"x" * 200_000 + b"\n" + LINE + b"y\n"


def test_a_pipe_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    lines = LineOutput(as_line, writing)
    lines.check()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        lines.check()
    os.close(writing)
