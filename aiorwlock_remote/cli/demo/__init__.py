"""``rwlock demo``: processes share data under locks, and faults are injected."""
