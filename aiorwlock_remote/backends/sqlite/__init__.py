"""Store in one SQLite file: the published ``mutex_locks`` and ``doormans`` tables."""
