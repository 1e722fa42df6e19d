"""Locks taken through the double exclude one another; ignoring them shows."""

from __future__ import annotations

import asyncio

import oracledb
import pytest

from tests.servers.oracle.client import OracleUser
from tests.servers.oracle_sessions import STAND_UP, seat, with_tables

pytestmark = pytest.mark.asyncio

SIT = """
BEGIN
  BEGIN
    INSERT INTO seats (kind, num, ticket) VALUES (:kind, :num, :ticket);
    :done := 1;
  EXCEPTION
    WHEN DUP_VAL_ON_INDEX THEN :done := 0;
  END;
  COMMIT;
END;
"""


async def contend(user: OracleUser, *, turns: int, obedient: bool) -> int:
    """Eight sessions that take turns at one seat; how often two held it at once."""
    inside = overlaps = 0
    left = turns

    async def one(n: int) -> None:
        nonlocal inside, overlaps, left
        async with await oracledb.connect_async(**user.login) as c:
            c.autocommit = True
            cursor = c.cursor()
            done = cursor.var(int)
            while left > 0:
                await cursor.execute(SIT, {**seat(ticket=f"{n}"), "done": done})
                if obedient and not done.getvalue():
                    continue
                left -= 1
                inside += 1
                overlaps += inside > 1
                await asyncio.sleep(0.001)
                inside -= 1
                await cursor.execute(STAND_UP, seat(ticket=f"{n}"))

    async with with_tables(user):
        await asyncio.gather(*map(one, range(8)))
    return overlaps


async def test_one_at_a_time(oracle_user: OracleUser) -> None:
    assert await contend(oracle_user, turns=100, obedient=True) == 0


async def test_a_client_that_ignores_the_lock_is_found(oracle_user: OracleUser) -> None:
    assert await contend(oracle_user, turns=100, obedient=False) > 0
