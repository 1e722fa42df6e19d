"""Another program at MariaDB, by pymysql."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from typing import Any

import pymysql

from tests.servers.mariadb import connected
from tests.servers.plain_seats import PlainSeats


class PlainMariadb(PlainSeats):
    """The published statements at ``url``."""

    taken = pymysql.IntegrityError

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(prefix)
        self._url = url

    def connected(self) -> AbstractContextManager[Any]:
        return closing(connected(self._url))
