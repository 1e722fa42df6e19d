"""Locks in a directory: a record and a seat for each resource, each a file."""
