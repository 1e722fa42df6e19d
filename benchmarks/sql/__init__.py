"""The locks on SQL databases, beside floors and peers: ``python -m benchmarks.sql``."""
