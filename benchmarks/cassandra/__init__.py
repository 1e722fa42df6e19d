"""The locks on Cassandra, beside floor and naive loop: ``-m benchmarks.cassandra``."""
