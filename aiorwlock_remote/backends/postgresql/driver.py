"""asyncpg, whose types say little: what we use of it, all in one place."""

from __future__ import annotations

from typing import Any

import asyncpg

# Objects of the driver's. Where one stands in a signature, its name says which.
Connection = Any
Pool = Any
Row = Any

DRIVER: Any = asyncpg
InterfaceError: type[Exception] = asyncpg.InterfaceError
PostgresError: type[Exception] = asyncpg.PostgresError
