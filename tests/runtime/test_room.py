"""The waiting room when thousands of names are used at once."""

from __future__ import annotations

import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.runtime.gate import Gate
from aiorwlock_remote.runtime.room import FEW

pytestmark = pytest.mark.anyio


async def test_gates_in_use_are_not_looked_through_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def busy(gate: Gate) -> bool:  # noqa: ARG001 - somebody waits at each of them
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(Gate, "idle", property(busy))
    many = 8 * FEW
    async with connect("memory://") as locks:
        room = locks._session.drive.room
        for number in range(many):
            room.gate(resource("many", number))
        assert len(room._gates) == many
    assert many / 2 < looks < 4 * many


async def test_gates_that_stand_idle_are_forgotten() -> None:
    async with connect("memory://") as locks:
        room = locks._session.drive.room
        for number in range(8 * FEW):
            room.gate(resource("many", number))
            assert len(room._gates) <= FEW
