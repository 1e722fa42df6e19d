"""Cassandra store: each resource is a row, changed by lightweight transactions."""

from __future__ import annotations

from aiorwlock_remote.backends.cassandra.backend import CassandraBackend

__all__ = ["CassandraBackend"]
