"""The locks on Redis, beside floors and peers: ``python -m benchmarks.redis``."""
