"""What the stores of occupied objects in SQLAlchemy and Django share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges, contender_id
from aiorwlock_remote.core.timing import MICROS

PENDING, USING = "pending", "using"
"""Values of the column ``status``: the process wants the object, or has it."""
COLUMNS = ("object", "who", "status", "since")
WIDTH = 200
"""Characters of the columns ``object`` and ``who``."""


class RowsOccupancyStore(ABC):
    """Base of the stores that record who uses an object in the rows of a table.

    Each step is one statement, committed at once. ``now``: the SQL expression for the
    database's clock in microseconds of Unix time, which the column ``since`` contains.
    """

    # A database shows what is committed: no look is older than one's own change.
    confirms: bool = False

    def __init__(self, ages: ExpiryAges, now: object) -> None:
        self.ages: ExpiryAges = ages
        self._since_now = {"since": now}

    def check(self, thing: str) -> None:  # noqa: B027 - of the port, not abstract
        """Accept every object: the column is wide enough for any name."""

    def sign(self, label: str) -> str:
        return contender_id(label, random_id())

    async def write(self, thing: str, who: str) -> None:
        row = {"object": thing, "who": who, "status": PENDING}
        await self._insert(row | self._since_now)

    async def pendings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        return await self._records(thing, who, PENDING)

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        return await self._records(thing, who, USING)

    async def drop(self, thing: str, record: ContenderRecord, *, using: bool) -> None:
        status = USING if using else PENDING
        await self._delete(
            object=thing, who=record.who, status=status, since=record.mark
        )

    async def promote(self, thing: str, who: str) -> bool:
        changes = {"status": USING} | self._since_now
        return await self._update(changes, object=thing, who=who, status=PENDING)

    async def extend(self, thing: str, who: str) -> bool:
        changes = self._since_now
        return await self._update(changes, object=thing, who=who, status=USING)

    async def remove(self, thing: str, who: str) -> bool:
        return await self._delete(object=thing, who=who)

    async def _records(
        self, thing: str, who: str, status: str
    ) -> list[ContenderRecord]:
        rows = await self._others(thing, who, status)
        if any(since is None for _, since, _ in rows):
            # Rows of programs that do not write the time: their age counts from here,
            # else they would keep everybody out for ever. In a transaction of its own:
            # SQLite refuses a transaction that has read and then writes while another
            # one has written.
            await self._update(self._since_now, object=thing, since=None)
        return [
            ContenderRecord(str(name), max(0, age or 0) / MICROS, mark=since or 0)
            for name, since, age in rows
        ]

    @abstractmethod
    async def _insert(self, row: Mapping[str, object]) -> None:
        """Insert a row; ``row`` maps column names to values."""

    @abstractmethod
    async def _update(self, changes: Mapping[str, object], **row: object) -> bool:
        """Change the rows whose columns equal ``row``; return True if there are any."""

    @abstractmethod
    async def _delete(self, **row: object) -> bool:
        """Delete the rows whose columns equal ``row``; return True if there are any."""

    @abstractmethod
    async def _others(
        self, thing: str, who: str, status: str
    ) -> Sequence[tuple[str, int | None, int | None]]:
        """Return the object's rows of this status, except that of ``who``.

        Of each row: the columns ``who`` and ``since``, and its age in microseconds.
        """
