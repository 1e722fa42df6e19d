"""``rwlock demo``: processes share ledgers under locks, and faults are injected."""
