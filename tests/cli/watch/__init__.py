"""`rwlock watch`."""
