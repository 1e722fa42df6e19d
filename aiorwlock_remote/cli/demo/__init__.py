"""``rwlock demo``: processes share ledgers under locks, and one sees it hold."""
