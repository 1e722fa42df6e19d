"""What users give others to read: refused before anything is sent, or made fit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, Locks, connect
from aiorwlock_remote.core.text import MAX_REASON, check_reason, one_line

pytestmark = pytest.mark.anyio

WRONG: tuple[Any, ...] = (42, 0, None, b"x", ["x"], "\0", "\ud800", "x" * 1001)
ASKED: dict[str, Callable[[Locks, Any], Awaitable[object]]] = {
    "acquire": lambda locks, reason: locks.mutex("order", 1).acquire(1, reason=reason),
    "try": lambda locks, reason: locks.mutex("order", 1).try_acquire(reason=reason),
    "multi": lambda locks, reason: _multi(locks, reason),  # noqa: PLW0108 - below
}


@pytest.mark.parametrize("reason", WRONG, ids=repr)
@pytest.mark.parametrize("asked", ASKED)
async def test_a_reason_that_no_store_can_hold_changes_nothing(
    asked: str,
    reason: Any,  # noqa: ANN401 - whatever users give
) -> None:
    async with connect("memory://") as locks:
        with pytest.raises(ConfigurationError, match="reason"):
            await ASKED[asked](locks, reason)
        async with locks.mutex("order", 1).acquire(0, reason="x" * MAX_REASON):
            pass


def test_allowed_reasons() -> None:
    for reason in ("", "für Jürgen", "two\nlines", "x" * MAX_REASON):
        assert check_reason(reason) == reason


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_is_never_refused_for_its_name() -> None:
    async def held() -> str:
        async with connect("memory://") as locks, locks.mutex("order", 1):
            return (await locks.mutex("order", 1).info()).holders[0].task

    for name in ("\ud800\0\n", "x" * 10_000):
        task = asyncio.create_task(held(), name=name)
        assert await task == one_line(name, 200)
    assert one_line("\ud800\0\n", 200) == "???"


async def _multi(locks: Locks, reason: str) -> None:
    async with locks.multi(
        locks.mutex("order", 1), locks.mutex("order", 2), reason=reason
    ):
        pass
