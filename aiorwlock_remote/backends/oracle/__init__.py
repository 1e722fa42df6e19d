"""Oracle: two published tables, each step one anonymous block of PL/SQL."""

from __future__ import annotations

from aiorwlock_remote.backends.oracle.backend import OracleBackend

__all__ = ["OracleBackend"]
