"""``rwlock watch``: shows who holds and who waits, and updates that all the time."""
