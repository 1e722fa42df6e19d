"""A readers-writer lock in the row that it protects."""
