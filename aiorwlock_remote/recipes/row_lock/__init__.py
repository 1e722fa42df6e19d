"""Readers-writer locks in columns of the locked row itself, in SQL databases."""
