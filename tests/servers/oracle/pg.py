"""The driver of PostgreSQL, which has no types of its own, with those used here."""

# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import asyncpg

PostgresError = asyncpg.PostgresError
Denied = asyncpg.InsufficientPrivilegeError
TableChanged = asyncpg.InvalidCachedStatementError
NotYet = asyncpg.CannotConnectNowError
LOST = (
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # informed that it ends, and not yet closed
    asyncpg.PostgresConnectionError,
    ConnectionError,
)

Row = Mapping[str, Any]


class Attribute(NamedTuple):
    """A column of what a statement gives, and its type's name."""

    name: str
    type: str


class Prepared(Protocol):
    async def fetch(self, *values: Any) -> list[Row]: ...  # noqa: ANN401
    def get_statusmsg(self) -> str: ...
    def get_attributes(self) -> Sequence[Any]: ...


class Executes(Protocol):
    """A connection, or a pool of them."""

    async def execute(self, text: str, *values: Any) -> str: ...  # noqa: ANN401
    async def fetch(self, text: str, *values: Any) -> list[Row]: ...  # noqa: ANN401
    def terminate(self) -> None: ...


class Connection(Executes, Protocol):
    async def prepare(self, text: str) -> Prepared: ...
    def get_server_pid(self) -> int: ...


async def connect(dsn: str, user: str, settings: dict[str, str]) -> Connection:
    connection = await asyncpg.connect(
        dsn, user=user, statement_cache_size=0, server_settings=settings
    )
    return cast("Connection", connection)


async def pool(dsn: str, settings: dict[str, str]) -> Executes:
    made = await asyncpg.create_pool(
        dsn, min_size=1, max_size=4, server_settings=settings
    )
    return cast("Executes", made)


def attributes(prepared: Prepared) -> list[Attribute]:
    return [Attribute(a.name, a.type.name) for a in prepared.get_attributes()]


class ErrorFields(NamedTuple):
    """What PostgreSQL says about an error."""

    state: str
    text: str
    constraint: str
    context: str


def error_fields(error: asyncpg.PostgresError) -> ErrorFields:
    names = ("sqlstate", "constraint_name", "context", "message")
    state, constraint, context, text = (getattr(error, n, None) or "" for n in names)
    return ErrorFields(state, text, constraint, context)
