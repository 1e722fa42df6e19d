"""The locks on SQL databases, beside floors and peers: ``-m benchmarks.sql``."""
