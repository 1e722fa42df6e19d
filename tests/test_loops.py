"""The loop named in a test's id is the loop it runs on.

With `anyio_mode = "auto"` beside pytest-asyncio a copy named [trio] runs on asyncio:
everything passes and trio was never tried. These are the canaries for that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import anyio.lowlevel
import pytest
import sniffio
import trio

from tests.long import LONG
from tests.loops import LOOPS


@pytest.mark.anyio
async def test_loop_is_the_one_in_the_id(request: pytest.FixtureRequest) -> None:
    named = request.node.callspec.id
    await anyio.lowlevel.checkpoint()
    if named == "trio":
        assert sniffio.current_async_library() == "trio"
        assert trio.lowlevel.in_trio_run()
        return
    assert sniffio.current_async_library() == "asyncio"
    assert not trio.lowlevel.in_trio_run()
    loop = type(asyncio.get_running_loop()).__module__
    assert loop.partition(".")[0] == named


@pytest.mark.anyio
async def test_anyio_agrees_with_the_id(request: pytest.FixtureRequest) -> None:
    task = anyio.get_current_task()
    if request.node.callspec.id == "trio":
        assert task.id == id(trio.lowlevel.current_task())
    else:
        assert task.id == id(asyncio.current_task())


@pytest.mark.asyncio
async def test_marked_asyncio_runs_once_and_on_asyncio(
    request: pytest.FixtureRequest,
) -> None:
    assert not hasattr(request.node, "callspec")
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")


def test_modes_of_the_plugins(pytestconfig: pytest.Config) -> None:
    with suppress(ValueError):  # older versions of anyio have no such setting
        assert pytestconfig.getini("anyio_mode") != "auto"
    assert pytestconfig.getini("asyncio_mode") == "strict"


def test_all_three_loops_are_there() -> None:
    assert {loop.id for loop in LOOPS} == {"asyncio", "uvloop", "trio"}


def test_what_the_full_tests_leave_out_is_there() -> None:
    """A test that is renamed must not come back to them unseen."""
    folder = Path(__file__).parent
    for files in LONG.values():
        for file, names in files.items():
            text = (folder / file).read_text("utf-8")
            for name in names:
                test = name.partition("[")[0]
                assert not test or f"def {test}" in text, f"{file}: {name}"
