"""The session in PostgreSQL that ends under the double's."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
import pytest

from tests.servers.oracle import pg
from tests.servers.oracle.database import Database
from tests.servers.oracle.errors import END_OF_FILE, OracleError


class Ending:
    """What asyncpg is between PostgreSQL's last word and the connection's end."""

    async def prepare(self, text: str) -> Any:  # noqa: ANN401, ARG002 - as asyncpg
        raise asyncpg.InternalClientError("cannot switch to state 11")

    def get_server_pid(self) -> int:
        return 1


@pytest.mark.asyncio
async def test_a_session_that_is_ending_is_an_end_of_file() -> None:
    database = Database(cast("pg.Connection", Ending()), "SCOTT")
    with pytest.raises(OracleError) as caught:
        await database.parsed("SELECT 1")
    assert caught.value is END_OF_FILE
