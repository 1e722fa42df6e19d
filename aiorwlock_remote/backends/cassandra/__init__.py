"""Cassandra: a resource is a row, each change of it a lightweight transaction."""
