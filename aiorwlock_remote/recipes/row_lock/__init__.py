"""Readers-writer locks in the resource's own row of a database (layout S2)."""
