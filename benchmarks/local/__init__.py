"""Locks that need no server, beside their peers: ``python -m benchmarks.local``."""
