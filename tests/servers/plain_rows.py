"""Another program at a user's table: the published UPDATEs, by a plain driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

UPDATES = {
    "RLock": """
        UPDATE invoices SET lock_mark = 'ReadLock',
            read_lock_count = read_lock_count + 1, lock_reason = {}
        WHERE id = {} AND lock_mark IN ('Unlock', 'ReadLock')
    """,
    "RUnlock": """
        UPDATE invoices
        SET lock_mark = CASE WHEN read_lock_count > 1 THEN 'ReadLock' ELSE 'Unlock' END,
            read_lock_count = read_lock_count - 1, lock_reason = {}
        WHERE id = {} AND lock_mark = 'ReadLock' AND read_lock_count > 0
    """,
    "WLock": """
        UPDATE invoices SET lock_mark = 'WriteLock', lock_reason = {}
        WHERE id = {} AND lock_mark = 'Unlock'
    """,
    "WUnlock": """
        UPDATE invoices SET lock_mark = 'Unlock', lock_reason = {}
        WHERE id = {} AND lock_mark = 'WriteLock'
    """,
}
TABLE = """
CREATE TABLE invoices (
    id INTEGER PRIMARY KEY,
    total INTEGER DEFAULT 0 NOT NULL,
    lock_mark VARCHAR(9) DEFAULT 'Unlock' NOT NULL,
    read_lock_count INTEGER DEFAULT 0 NOT NULL,
    lock_reason VARCHAR(200),
    lock_grants VARCHAR(4000)
)
"""


class PlainRows:
    """One connection; each statement is a transaction, ``{}`` is a bind."""

    def __init__(self, connect: Callable[[], Any], binds: str) -> None:
        """``binds``: as the driver writes the one of that number."""
        self._db = connect()
        self._binds = binds

    @classmethod
    @contextmanager
    def at(cls, connect: Callable[[], Any], binds: str) -> Iterator[PlainRows]:
        """Closed afterwards."""
        plain = cls(connect, binds)
        try:
            yield plain
        finally:
            plain._db.close()

    def run(self, text: str, *values: object) -> int:
        """How many rows it changed."""
        count = self.begin(text, *values)
        self.commit()
        return count

    def begin(self, text: str, *values: object) -> int:
        """The same; what it changed stays locked until ``commit``."""
        cursor = self._db.cursor()
        try:
            cursor.execute(self._text(text, values), values)
            changed: int = cursor.rowcount
        except BaseException:
            self._db.rollback()
            raise
        finally:
            cursor.close()
        return changed

    def commit(self) -> None:
        self._db.commit()

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._db.cursor()
        cursor.execute(self._text(text, values), values)
        found = [tuple(row) for row in cursor.fetchall()]
        cursor.close()
        self._db.commit()
        return found

    def make(self) -> None:
        """The table, with rows 1 to 5."""
        self.run(TABLE)
        for number in range(1, 6):
            self.run("INSERT INTO invoices (id) VALUES ({})", number)

    def step(self, name: str, key: int = 1, reason: str = "theirs") -> bool:
        """One of the published UPDATEs: whether it was granted."""
        return self.run(UPDATES[name], reason, key) == 1

    def state(self, key: int = 1) -> tuple[str, int]:
        return self.stands(key)[:2]

    def stands(self, key: int = 1) -> tuple[str, int, str | None]:
        """Mark, count, reason."""
        ((mark, count, reason),) = self.rows(
            "SELECT lock_mark, read_lock_count, lock_reason FROM invoices"
            " WHERE id = {}",
            key,
        )
        return str(mark).rstrip(), int(count), reason

    def _text(self, text: str, values: tuple[object, ...]) -> str:
        return text.format(*(self._binds.format(n + 1) for n in range(len(values))))
