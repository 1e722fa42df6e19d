"""The locks on Redis, side by side with floors and peers: ``-m benchmarks.redis``."""
