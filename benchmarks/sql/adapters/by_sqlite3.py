"""The floor under SQLite: two bare transactions in a worker thread."""

from __future__ import annotations

from benchmarks.local.adapters.sqlite import threaded as connect_floor

__all__ = ["connect_floor"]
