"""Benchmarks of the locks beside floors and peers: ``nox -s bench``."""
