"""``fence_memory`` below a minute: rows of the databases stay for a minute."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiorwlock_remote.cas.driver.store import MIN_FENCE_MEMORY, TableStore
from aiorwlock_remote.ports import StoreSettings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.anyio
@pytest.mark.parametrize("said", [0.0, 59.0, 61.0])
async def test_rows_stay_for_a_minute_at_least(said: float) -> None:
    """A swap that was lost may be carried out later; it must not find an empty row."""
    asked: list[float] = []

    async def forget(memory: float, after: object) -> None:
        del after
        asked.append(memory)

    settings = StoreSettings(client_id="", fence_memory=said)
    store = cast("Any", SimpleNamespace(settings=settings, forget=forget))
    await TableStore._purge(store, ("", 0))
    assert asked == [max(60.0, said)]


@pytest.mark.parametrize(
    "page",
    [
        "stores/postgresql.md",
        "stores/mariadb.md",
        "stores/oracle.md",
        "reference/options.md",
    ],
)
def test_the_pages_say_so(page: str) -> None:
    least = f"{MIN_FENCE_MEMORY:g}"
    said = f"`fence_memory` below {least} seconds counts as {least}"
    assert said in " ".join((DOCS / page).read_text().split())
