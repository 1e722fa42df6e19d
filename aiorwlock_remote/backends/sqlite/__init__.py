"""SQL stores: the published ``mutex_locks`` and ``doormans`` tables."""
