"""MariaDB: each step is one request, waiters poll."""

from __future__ import annotations

from aiorwlock_remote.backends.mariadb.backend import MariadbBackend

__all__ = ["MariadbBackend"]
