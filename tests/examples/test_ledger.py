"""The examples' stand-in for a database, and what it is without a lock."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from aiorwlock_remote import StaleFence
from tests.examples.fix_site import EXAMPLES

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def ledger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ledger", EXAMPLES / "ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_reads_back_what_was_written(ledger: ModuleType, tmp_path: Path) -> None:
    book = ledger.Ledger(tmp_path / "ledger.db")
    assert await book.paid(7, 1) == 0
    await book.set_paid(7, 30, 1)
    await book.set_paid(8, 5, 1)
    assert await ledger.Ledger(tmp_path / "ledger.db").paid(7, 1) == 30


async def test_an_older_fence_is_refused_and_changes_nothing(
    ledger: ModuleType, tmp_path: Path
) -> None:
    book = ledger.Ledger(tmp_path / "ledger.db")
    await book.set_paid(7, 30, 5)
    with pytest.raises(StaleFence):
        await book.set_paid(7, 99, 4)
    with pytest.raises(StaleFence):
        await book.paid(7, 4)
    assert await book.paid(7, 5) == 30


async def test_a_read_raises_the_fence_too(ledger: ModuleType, tmp_path: Path) -> None:
    book = ledger.Ledger(tmp_path / "ledger.db")
    await book.set_paid(7, 30, 5)
    assert await book.paid(7, 6) == 30
    with pytest.raises(StaleFence):
        await book.set_paid(7, 99, 5)


async def test_without_a_lock_updates_are_lost(
    ledger: ModuleType, tmp_path: Path
) -> None:
    """The negative control of test_web_apps: the same steps, unprotected."""
    book = ledger.Ledger(tmp_path / "ledger.db")

    async def pay() -> None:
        paid = await book.paid(7, 1) + 5
        await anyio.sleep(0.02)
        await book.set_paid(7, paid, 1)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(pay)
    assert await book.paid(7, 1) < 50
