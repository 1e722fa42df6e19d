"""Occupancy that are closed, and a loop that their libraries do not know."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import Closed, LockTimeout
from aiorwlock_remote.recipes import folder_occupancy
from aiorwlock_remote.runtime.event_loop import require_asyncio
from tests.recipes.occupied_places import BOOK, FolderPlace
from tests.recipes.watched_steps import NOTHING, watched

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


async def test_closing_calls_off_and_gives_back(tmp_path: Path) -> None:
    place = FolderPlace(str(tmp_path))
    home, store = watched(folder_occupancy.occupancy(tmp_path))
    held = await home.occupy(("book", 1))
    stands = anyio.Event()

    async def stand(step: str) -> None:
        if step == "promote":
            stands.set()
            await anyio.sleep(0.05)

    store.before = stand
    errors: list[str] = []

    async def use(timeout: float | None) -> None:
        try:
            await home.occupy(BOOK, timeout)
        except (Closed, LockTimeout) as exc:
            errors.append(type(exc).__name__)

    async with anyio.create_task_group() as group:
        group.start_soon(use, None)
        await stands.wait()
        await home.aclose()
    assert errors == ["Closed"]
    assert place.records() == NOTHING
    assert not await held.release()
    with pytest.raises(Closed):
        await home.occupy(BOOK)
    assert place.records() == NOTHING


@pytest.mark.only_on("trio", "it is about trio")
async def test_a_library_of_asyncio_says_so() -> None:
    with pytest.raises(Exception, match="asyncio only"):
        require_asyncio()
