"""Tickets of ``detach``: what was not made by it is refused before anything is sent."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.locks import passing

pytestmark = pytest.mark.anyio

SECRET = "0" * 32
GOOD: list[Any] = ["order", "1", "write", SECRET, 1, 30.0]
WRONG: dict[str, str] = {
    "a type with half a character": json.dumps(["\ud800", *GOOD[1:]]),
    "a type with NUL": json.dumps(["a\0b", *GOOD[1:]]),
    "a type that is none": json.dumps([1, *GOOD[1:]]),
    "no ticket of ours": json.dumps([*GOOD[:3], "readers", 1, 30.0]),
    "no mode": json.dumps([*GOOD[:2], "both", SECRET, 1, 30.0]),
    "an infinite fence": json.dumps([*GOOD[:4], float("inf"), 30.0]),
    "an infinite lease": json.dumps([*GOOD[:5], float("inf")]),
    "no lease at all": json.dumps([*GOOD[:5], float("nan")]),
    "a lease of nothing": json.dumps([*GOOD[:5], 0]),
    "a fence too long to read": f'["order","1","write","{SECRET}",{"9" * 5000},30]',
    "nested without end": "[" * 100_000,
    "no list": '{"a": 1}',
    "no JSON": "[",
}


def made(text: str) -> str:
    return "rwl1." + base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
async def test_refused(text: str) -> None:
    async with connect("memory://") as locks:
        with pytest.raises(ConfigurationError, match="detach"):
            await locks.adopt(made(text))


async def test_what_detach_made_is_read() -> None:
    assert passing.read(made(json.dumps(GOOD))).lease == 30.0
    async with connect("memory://") as locks:
        ticket = (await locks.mutex("order", 1).acquire()).detach()
        await (await locks.adopt(ticket)).release()
