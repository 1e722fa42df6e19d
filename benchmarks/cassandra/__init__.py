"""The locks on Cassandra, beside floors: ``python -m benchmarks.cassandra``."""
