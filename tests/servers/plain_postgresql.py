"""Another program at PostgreSQL, by psycopg."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import psycopg

from tests.servers.plain_seats import PlainSeats


class PlainPostgresql(PlainSeats):
    """The published statements at ``url``."""

    taken = psycopg.errors.UniqueViolation

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(prefix)
        self._url = url

    def connected(self) -> AbstractContextManager[Any]:
        return psycopg.connect(self._url)
