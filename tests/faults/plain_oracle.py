"""A program in plain python-oracledb that knows nothing of us: a counter in a file.

``python -m tests.faults.plain_oracle LOGIN FILE SECONDS LOCKS``, the login as JSON. It
takes and leaves the mutex (foobar, 123) by the published statements if LOCKS is "yes",
else it does not ask. Prints how often it counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import oracledb

from tests.faults.counter import Counter

TAKE = (
    "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
    " VALUES ('foobar', 123, 'gluww')"
)
LEAVE = (
    "DELETE FROM mutex_locks"
    " WHERE resource_type = 'foobar' AND resource_id = 123 AND ticket = 'gluww'"
)


def taken(cursor: oracledb.Cursor) -> bool:
    """Whether it is ours now."""
    try:
        cursor.execute(TAKE)
    except oracledb.IntegrityError as exc:
        assert exc.args[0].full_code == "ORA-00001"  # noqa: PT017 - no test
        return False
    return True


def main(login: dict[str, str], path: Path, seconds: float, *, locks: bool) -> int:
    """Count for so long."""
    counter, written = Counter(path), 0
    end = time.monotonic() + seconds
    with oracledb.connect(**login) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        while time.monotonic() < end:
            if locks and not taken(cursor):
                time.sleep(0.005)
                continue
            seen = counter.read()
            time.sleep(0.002)
            counter.write(seen + 1)
            written += 1
            if locks:
                cursor.execute(LEAVE)
                assert cursor.rowcount == 1
                time.sleep(0.03)
    counter.close()
    return written


if __name__ == "__main__":
    assert oracledb.is_thin_mode()
    login, path, seconds = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    print(main(login, path, float(seconds), locks=sys.argv[4] == "yes"))
