"""PostgreSQL: each step is one statement, waiters are woken by ``NOTIFY``."""

from __future__ import annotations

from aiorwlock_remote.backends.postgresql.backend import PostgresqlBackend

__all__ = ["PostgresqlBackend"]
