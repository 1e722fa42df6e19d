"""Cassandra: a resource is a row, and each change of it a lightweight transaction."""

from __future__ import annotations

from aiorwlock_remote.backends.cassandra.backend import CassandraBackend

__all__ = ["CassandraBackend"]
