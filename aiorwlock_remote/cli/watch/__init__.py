"""``rwlock watch``: who holds and who waits, looked at again and again."""
