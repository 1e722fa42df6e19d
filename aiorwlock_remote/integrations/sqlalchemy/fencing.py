"""Rows that refuse old fences: a mixin for mapped classes, and a WHERE clause."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, Mapper, mapped_column

from aiorwlock_remote.errors import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.checks import check_fence
from aiorwlock_remote.fencing.sql import narrow_column_error


class FencedRow:
    """Mixin for mapped classes: column ``fence``, the highest fence a row has seen."""

    fence: Mapped[int] = mapped_column(
        sa.BigInteger, nullable=False, default=0, server_default="0", sort_order=1000
    )


Row = TypeVar("Row", bound=FencedRow)
Change = TypeVar("Change", bound=sa.Update | sa.Delete)


def fenced(change: Change, fence: int, *, column: str = "fence") -> Change:
    """Return ``change``, restricted to rows that have seen no higher fence.

    An UPDATE also stores ``fence`` in the rows. If the statement changes no row, no row
    matches or the row has a higher fence.

    Args:
        change: An UPDATE or DELETE.
        fence: The fence of the grant.
        column: Name of the table's column with the fence.

    Raises:
        BadFence: ``fence`` is no fence.
        ConfigurationError: ``change`` is no UPDATE or DELETE, or its table does not
            have the column.
    """
    check_fence(fence)
    if not isinstance(change, sa.Update | sa.Delete):
        raise ConfigurationError(
            what=f"fenced takes an UPDATE or DELETE, not {type(change).__name__}"
        )
    if column not in change.table.c:
        raise ConfigurationError(what=f"{change.table} has no column {column!r}")
    # <= and not <: a grant may change its row more than once.
    narrowed: sa.Update | sa.Delete = change.where(change.table.c[column] <= fence)
    if isinstance(narrowed, sa.Update):
        narrowed = narrowed.values({column: fence})
    return cast("Change", narrowed)


async def fenced_get(
    session: AsyncSession, row: type[Row], identity: object, fence: int
) -> Row | None:
    """Return a row as it is in the database, under a grant; None if it does not exist.

    The row's fence is raised, which locks the row until the transaction ends: what you
    change in it before you commit cannot come too late, and no other transaction
    changes it meanwhile. If the call is cancelled, roll the session back.

    Args:
        session: Its transaction reads the row.
        row: The mapped class, a ``FencedRow``.
        identity: The primary key; a tuple if it has several columns.
        fence: The fence of the grant.

    Raises:
        StaleFence: the row has seen a higher fence; roll back.
        BadFence: ``fence`` is no fence.
        ConfigurationError: the class has no fence, ``identity`` is no key of it, or the
            column of the fence has fewer than 64 bits; roll back.
    """
    check_fence(fence)
    mapper = _mapper(row)
    keys: tuple[object, ...] = (identity,)
    if isinstance(identity, tuple):
        keys = cast("tuple[object, ...]", identity)
    if len(keys) != len(mapper.primary_key):
        raise ConfigurationError(
            what=f"{row.__name__}: {len(mapper.primary_key)} key column(s), "
            f"{len(keys)} given"
        )
    fenced_in = _fenced_in(mapper)
    columns = _key_columns(mapper, fenced_in)
    where = [column == value for column, value in zip(columns, keys, strict=True)]
    raising = (
        sa.update(fenced_in.class_)
        .where(*where, row.fence <= fence)
        .values(fence=fence)
        # The row is read anew below; objects in the session are not searched.
        .execution_options(synchronize_session=False)
    )
    try:
        changed = await session.execute(raising)
    except DBAPIError as exc:
        column = mapper.columns["fence"]
        of = str(fenced_in.local_table)
        narrow = narrow_column_error(exc.orig, of, column.name, fence, keys)
        if narrow is None:
            raise
        raise narrow from exc
    # Locked reads: a plain one of MariaDB shows a snapshot, even of a row that the
    # UPDATE has matched (tests/fencing/test_snapshots.py).
    if changed.rowcount != 1:  # type: ignore[attr-defined]  # a CursorResult has it
        look = sa.select(row.fence).where(*where).with_for_update()
        highest = (await session.execute(look)).scalar()
        if highest is None:
            return None
        raise StaleFence(
            resource=f"{mapper.local_table}/{'/'.join(map(str, keys))}",
            fence=fence,
            highest=highest,
        )
    return await session.get(
        row, keys, populate_existing=True, with_for_update={"of": row}
    )


def _mapper(row: type[Row]) -> Mapper[Row]:
    found: object = sa.inspect(row, raiseerr=False)
    if not isinstance(found, Mapper) or "fence" not in found.columns:
        raise ConfigurationError(
            what=f"{row!r} is no mapped class with a fence",
            hint="derive it from FencedRow",
        )
    return cast("Mapper[Row]", found)


def _fenced_in(mapper: Mapper[Row]) -> Mapper[Any]:
    # With joined-table inheritance the fence is in one of several tables.
    table = mapper.columns["fence"].table
    found = (one for one in mapper.iterate_to_root() if one.local_table is table)
    return next(found, mapper)


def _key_columns(
    mapper: Mapper[Row], fenced_in: Mapper[Any]
) -> tuple[sa.ColumnElement[Any], ...]:
    table = fenced_in.local_table
    if all(column.table is table for column in mapper.primary_key):
        return mapper.primary_key
    # The order of several columns in the other table is not known.
    if len(mapper.primary_key) > 1:
        raise ConfigurationError(
            what=f"{mapper.class_.__name__}: fence and key are in different tables",
            hint=f"make {mapper.base_mapper.class_.__name__} a FencedRow",
        )
    return tuple(table.primary_key)
